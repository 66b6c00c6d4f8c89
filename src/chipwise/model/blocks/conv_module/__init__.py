"""Conformer's convolution module: gated projection, depthwise filter over positions, norm, output projection."""
