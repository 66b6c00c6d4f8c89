"""Modulation: time and label of a denoiser, as shifts, scales and gates of its blocks (adaLN-zero)."""
