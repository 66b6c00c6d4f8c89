"""Text: a decoder learns entries token by token, scored by bits per byte."""
