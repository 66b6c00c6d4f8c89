"""Writes exported model files, runs and measures them in runtimes, and learns from the measurements.

``export`` writes and reads model files, ``graphs`` reads users' ONNX files, ``runtimes`` runs models and ``measure``
times them. ``calibrate`` fits a profile of this machine, ``teach`` fits one from a table of measured models, and
``kits`` packs models to be measured on other machines. Choosing between models is the work of :mod:`chipwise.design`.
"""
