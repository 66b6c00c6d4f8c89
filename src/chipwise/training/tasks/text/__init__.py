"""Text: a decoder learns entries token by token and is judged by bits per byte."""
