"""Frames of a sound as positions: convolutions over them as products of neighbouring frames; characters at the end."""
