"""Token table, learned positions and the head."""
