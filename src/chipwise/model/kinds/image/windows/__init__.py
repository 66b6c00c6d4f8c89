"""Attention over the positions of an image or within windows of patches, with relative position biases."""
