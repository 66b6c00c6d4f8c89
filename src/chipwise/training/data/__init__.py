"""Data sets: the protocol and its table, text sources, tokenizers, windows of tokens, files of users."""
