"""Ranking models, which score candidates given a history of items."""
