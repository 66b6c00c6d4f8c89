"""Costs on a calibrated machine: time and memory with intervals, and what limits the speed of each operator."""
