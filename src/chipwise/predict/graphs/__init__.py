"""Predicts the time of a user's own graph, what limits each of its operators, and how much each change would gain.

``law`` predicts operators: it multiplies each operator's amounts of work by fitted constants and scales the result with
the chip's peak and bandwidth. ``chips`` reads the speeds that the law needs from a data sheet. ``pricing`` estimates a
graph, and ``explanation`` explains the estimate.
"""
