"""Diffusion: a transformer draws images from noise in steps and is judged by how near they come to real ones."""
