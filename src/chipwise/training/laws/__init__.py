"""Laws of loss: the expected loss by size, shape and text, with its uncertainty."""
