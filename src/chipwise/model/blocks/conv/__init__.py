"""A short causal convolution before a block: mixes each channel over a few earlier positions."""
