"""Diffusion transformers: a pass of the denoiser, and the decoder of latents."""
