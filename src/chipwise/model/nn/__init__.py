"""Torch primitives for blocks."""

from chipwise.model.nn.amx import avoid_broken_amx

avoid_broken_amx()
