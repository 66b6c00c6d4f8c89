"""A short causal convolution before a block: each channel with those of the few positions before it."""
