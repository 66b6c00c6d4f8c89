"""Data sets: the protocol and its kinds, text sources, tokenizers, token windows, and readers of users' files."""
