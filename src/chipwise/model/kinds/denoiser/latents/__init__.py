"""The latent decoder, which runs after a denoiser's last step: two convolutions, then a rearrangement to pixels."""
