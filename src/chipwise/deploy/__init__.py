"""Models as files that a runtime loads, what they do on a machine, and what measurements teach.

Writing and reading of files is in ``export``, runtimes in ``runtimes``, timing in ``measure``. ``calibrate`` learns
this machine, ``teach`` a machine from a table of measured models, ``kits`` machines that others measure. Nothing here
chooses between models: that is :mod:`chipwise.design`.
"""
