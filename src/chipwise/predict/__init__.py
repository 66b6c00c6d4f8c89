"""Predicts and explains the cost of running a model on a chip, without running it.

``cost`` predicts operators on a calibrated machine; ``kernels`` predicts them on a chip from its data sheet. ``served``
predicts whole requests to a server, and ``load`` predicts a server under load. ``whole_runs`` predicts models whose
kernels were not timed. ``explain`` says what limits a model's speed and what to change. The separate package
``chipwise_fitting`` fits the constants.
"""
