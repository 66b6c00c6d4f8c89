"""Cost of a model on a chip, with reasons; nothing is run.

``cost`` prices operators on a calibrated machine, ``kernels`` on a chip known by its data sheet, ``served`` whole
serving requests, ``load`` a server under load, ``whole_runs`` models whose kernels were not timed. ``explain`` says
what bounds a model and what to change. The package ``chipwise_fitting`` fits the constants.
"""
