"""Modulation: turns a denoiser's time and label into shifts, scales and gates for its blocks (adaLN-zero)."""
