"""A short causal convolution before a block: it mixes the last few positions, separately in each channel."""
