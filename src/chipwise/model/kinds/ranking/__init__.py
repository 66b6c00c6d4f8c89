"""Ranking models: a history of items and the candidates to score."""
