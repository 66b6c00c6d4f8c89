"""The decoder of latents: two convolutions and the order of pixels, after the last step of a denoiser."""
