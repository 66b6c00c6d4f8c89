"""Multimodal: a small decoder with image tokens answers questions about images, scored by accuracy."""
