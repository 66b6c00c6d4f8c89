"""Multimodal: a small decoder with image tokens answers questions about images and is judged by its right answers."""
