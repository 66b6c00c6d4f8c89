"""Attention over the positions of an image, or within squares of them, with biases by distance."""
