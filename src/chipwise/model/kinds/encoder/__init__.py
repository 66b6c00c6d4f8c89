"""Text encoders: one vector per text."""
