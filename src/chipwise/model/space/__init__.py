"""Search spaces: candidates are rows of integers, each of which encodes a design."""
