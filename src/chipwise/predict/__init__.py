"""Cost of a model on a chip, with reasons; nothing is run.

``cost`` prices operators on a calibrated machine, ``kernels`` on a chip known by its data sheet, ``served`` whole
requests of served models, ``load`` a server under load, ``whole_runs`` models whose kernels nobody timed. ``explain``
says what bounds a model and what to change. Fitting the constants is the work of the package ``chipwise_fitting``.
"""
