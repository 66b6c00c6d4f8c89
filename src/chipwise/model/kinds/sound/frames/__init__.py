"""Convolutions over audio frames, computed as matrix products over neighbouring frames; and the character head."""
