"""Targets: the device and runtime that will serve a model, with its predictions and measurements."""
