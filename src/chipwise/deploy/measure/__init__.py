"""Measures a model's latency, memory and energy, judges whether the machine was quiet, and stores the measurements."""
