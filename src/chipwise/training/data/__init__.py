"""Data sets: their protocol and implementations, text sources, tokenizers, and readers of users' files."""
