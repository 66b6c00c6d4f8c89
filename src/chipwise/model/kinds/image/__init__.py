"""Image classifiers, and pretrained image encoders."""
