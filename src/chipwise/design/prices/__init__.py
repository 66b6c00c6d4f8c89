"""Costs of whole search spaces: tables of prices of parts, and sums over a candidate's parts."""
