"""An image's patches as positions: convolutions, the matrix of patches, the class token; and the head over classes."""
