"""Measures a model on a machine: time, memory, energy, and how quiet the machine was; keeps what was measured."""
