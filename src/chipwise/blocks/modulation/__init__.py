"""Modulation: what a denoiser is told, as shifts, scales and gates of its blocks (adaLN-zero)."""
