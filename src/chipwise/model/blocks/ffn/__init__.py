"""Plain and gated feed-forward."""
