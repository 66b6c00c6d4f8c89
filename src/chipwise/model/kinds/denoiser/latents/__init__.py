"""The decoder from latents to pixels: two convolutions and a rearrangement, after a denoiser's last step."""
