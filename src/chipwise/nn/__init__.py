"""Torch primitives that blocks are made of."""
