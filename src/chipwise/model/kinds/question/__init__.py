"""Models that answer questions about images."""
