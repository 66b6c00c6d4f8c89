"""Targets: the device and runtime that will serve a model, with predictions and measurements there."""
