"""Shared weights: one training from which every sub-model can be cut, scored, and trained on."""

from chipwise.train.supernet.score import score
from chipwise.train.supernet.sliced import extract
from chipwise.train.supernet.trainer import SupernetRecipe, SupernetResult, train_supernet
from chipwise.train.supernet.whole import whole_of, whole_of_space

__all__ = ["SupernetRecipe", "SupernetResult", "extract", "score", "train_supernet", "whole_of", "whole_of_space"]
