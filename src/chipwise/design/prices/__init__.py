"""Predicts the costs of all candidates of a search space, as sums over a table of block costs."""
