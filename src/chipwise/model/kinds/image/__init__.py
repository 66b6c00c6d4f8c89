"""Image classifiers, and published encoders of images."""
