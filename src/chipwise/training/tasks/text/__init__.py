"""Text: a decoder predicts entries token by token, scored by bits per byte."""
