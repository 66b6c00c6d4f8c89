"""Architectures as values: layers, blocks, weight formats, and the files that store them."""
