"""Search spaces: choices as rows of integers, and their designs."""
