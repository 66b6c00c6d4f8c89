"""The phases of one search, in order; each can be resumed, and finished trials are never lost."""
