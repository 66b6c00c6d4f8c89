"""Architectures as frozen dataclasses: layers, blocks, weight formats, and the files that store them."""
