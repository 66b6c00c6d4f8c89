"""Search spaces: choices as rows of integers, and the designs that they stand for."""
