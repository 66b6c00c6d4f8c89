"""Models: architectures as values, with readers and writers."""

from chipwise.spec.arch import ArchSpec, uniform
from chipwise.spec.candidates import RankingStem
from chipwise.spec.denoiser import Denoiser
from chipwise.spec.design import Design
from chipwise.spec.feed_forward import FeedForward, MixtureOfExperts
from chipwise.spec.layer import Layer
from chipwise.spec.mixers import Attention, ConvModule, GatedDelta, LatentAttention, Mamba2, ShortConv
from chipwise.spec.sound import SoundConv, SoundStem
from chipwise.spec.stages import Stage
from chipwise.spec.stem import ImageStem

__all__ = [
    "ArchSpec",
    "Attention",
    "ConvModule",
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
    "SoundConv",
    "SoundStem",
    "Stage",
    "uniform",
]
