"""Cost predictions that learn from measurements."""
