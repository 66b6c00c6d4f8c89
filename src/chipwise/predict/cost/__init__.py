"""Costs on a calibrated machine: seconds, bytes and bounds, as additive prices with intervals."""
