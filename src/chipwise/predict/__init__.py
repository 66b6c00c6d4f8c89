"""Predicts and explains the cost of a model on a chip; nothing is run.

``cost`` prices operators on a calibrated machine, ``kernels`` on a chip known by its data sheet. ``served`` prices
whole requests to a server, ``load`` a server under load, ``whole_runs`` models whose kernels were not timed.
``explain`` says what bounds a model and what to change. The package ``chipwise_fitting`` fits the constants.
"""
