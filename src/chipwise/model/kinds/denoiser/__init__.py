"""Diffusion transformers: the denoiser, and a decoder that turns latents into pixels."""
