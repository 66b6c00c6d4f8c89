"""Cross-attention: queries from one sequence, keys and values from an image's tokens."""
