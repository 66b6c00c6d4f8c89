"""Shared weights: one training from which every sub-model can be cut, scored, and trained on."""

from chipwise.training.supernet.export import export_subnetwork
from chipwise.training.supernet.score import score
from chipwise.training.supernet.sliced import extract
from chipwise.training.supernet.trainer import SupernetRecipe, SupernetResult, train_supernet
from chipwise.training.supernet.whole import whole_of, whole_of_space

__all__ = [
    "SupernetRecipe",
    "SupernetResult",
    "export_subnetwork",
    "extract",
    "score",
    "train_supernet",
    "whole_of",
    "whole_of_space",
]
