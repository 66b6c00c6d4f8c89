"""Diffusion: a transformer generates images from noise in steps, scored by Fréchet distance to real ones."""
