"""Text encoders: one vector a text."""
