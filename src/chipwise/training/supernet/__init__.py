"""Shared weights: one training for all sub-models, which can be cut, scored, and trained further."""
