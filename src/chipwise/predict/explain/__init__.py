"""Explains why a model is slow on a chip, and proposes changes with their predicted gains."""
