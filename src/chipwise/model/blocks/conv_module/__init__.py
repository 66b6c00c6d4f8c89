"""Conformer's convolution module: a gate, a depthwise filter over neighbouring positions, a norm, and out."""
