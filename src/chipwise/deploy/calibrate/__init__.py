"""Calibrates a machine: times operators and models, and fits the rates that the cost model needs."""
