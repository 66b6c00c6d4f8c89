"""Grouped-query self-attention."""
