"""Attention over an image, perhaps with a bias of each distance of two positions."""
