"""Text decoders."""
