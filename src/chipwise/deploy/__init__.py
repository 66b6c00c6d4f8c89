"""Exported model files: writing them, running them in runtimes, measuring them, and learning from measurements.

``export`` writes and reads files, ``graphs`` reads those of users, ``runtimes`` runs them, ``measure`` times them.
``calibrate`` fits a profile of this machine, ``teach`` fits one from a table of measured models, and ``kits`` packs
models to be measured on other machines.
Choosing between models is the work of :mod:`chipwise.design`.
"""
