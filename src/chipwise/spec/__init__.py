"""What a model is: its architecture as values, and how these are read and written."""

from chipwise.spec.arch import ArchSpec, Attention, Design, FeedForward, Layer, uniform

__all__ = ["ArchSpec", "Attention", "Design", "FeedForward", "Layer", "uniform"]
