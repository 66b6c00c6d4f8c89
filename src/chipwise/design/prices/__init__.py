"""Costs of whole search spaces: prices of parts in tables, and what a candidate's parts add up to."""
