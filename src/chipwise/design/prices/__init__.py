"""Costs of whole search spaces: tables of block prices, and their sums over a candidate's blocks."""
