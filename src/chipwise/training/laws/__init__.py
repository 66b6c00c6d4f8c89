"""Scaling laws: the expected loss by model size, shape and amount of text, with its uncertainty."""
