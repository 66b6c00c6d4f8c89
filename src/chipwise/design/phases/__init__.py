"""The phases of one search, in order. Every phase can be resumed, and finished trials are never lost."""
