"""Torch primitives that blocks are made of."""

from chipwise.model.nn.amx import avoid_broken_amx

avoid_broken_amx()
