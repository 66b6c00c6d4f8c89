"""Attention over an image, optionally with a bias for each distance between two positions."""
