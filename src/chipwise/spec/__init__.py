"""Models: architectures as values, with readers and writers."""

from chipwise.spec.arch import ArchSpec, Design, Layer, uniform
from chipwise.spec.candidates import RankingStem
from chipwise.spec.denoiser import Denoiser
from chipwise.spec.feed_forward import FeedForward, MixtureOfExperts
from chipwise.spec.mixers import Attention, GatedDelta, LatentAttention, Mamba2, ShortConv
from chipwise.spec.stem import ImageStem

__all__ = [
    "ArchSpec",
    "Attention",
    "Denoiser",
    "Design",
    "FeedForward",
    "GatedDelta",
    "ImageStem",
    "LatentAttention",
    "Layer",
    "Mamba2",
    "MixtureOfExperts",
    "RankingStem",
    "ShortConv",
    "uniform",
]
