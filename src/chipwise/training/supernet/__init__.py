"""Shared weights: one training from which every sub-model can be cut, scored, and trained on."""
