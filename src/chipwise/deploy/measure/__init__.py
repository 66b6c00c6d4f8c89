"""Measures a model on a machine: time, memory, energy, and noise; stores the measurements."""
