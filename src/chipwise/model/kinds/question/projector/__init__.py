"""What makes tokens of patches: neighbours averaged or joined, then two matrices."""
