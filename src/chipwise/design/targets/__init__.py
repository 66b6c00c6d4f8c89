"""Targets: a device and runtime that may serve a model; a target predicts costs and, if possible, measures them."""
