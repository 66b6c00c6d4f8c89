"""Diffusion: a transformer generates images from noise in steps, scored by their Fréchet distance from real images."""
