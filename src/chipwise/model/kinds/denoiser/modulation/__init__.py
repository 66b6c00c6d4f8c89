"""Modulation: time, label and step size of a denoiser, as shifts, scales and gates of its blocks (adaLN-zero)."""
