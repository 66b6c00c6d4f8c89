"""Scaling laws that predict a model's loss from its size, shape and amount of training text, with uncertainty."""
