"""Measures latency, memory, energy and noise of a model on a machine, and stores the measurements."""
