"""Laws of loss: what a model of some size, shape and text reaches, with its uncertainty."""
