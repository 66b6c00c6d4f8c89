"""Diffusion transformers: the denoiser, and the decoder from latents to pixels."""
