"""Cross-attention: queries of one sequence, keys and values of an image's tokens."""
