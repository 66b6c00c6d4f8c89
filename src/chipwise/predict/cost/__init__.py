"""Costs on a calibrated machine: seconds, bytes and what bounds them, as prices that add, with intervals."""
