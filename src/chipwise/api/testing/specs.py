"""A small model for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention


def toy_arch(**changes: Any) -> ArchSpec:
    """A model with two different layers, width 16 and a vocabulary of 20 tokens; ``changes`` replace its fields."""
    layers = (
        Layer(attention=Attention(heads=2, kv_heads=1, head_size=16), ffn=FeedForward(width=24)),
        Layer(
            attention=Attention(heads=4, kv_heads=2, head_size=16),
            ffn=FeedForward(width=40, activation="relu", gated=False),
        ),
    )
    toy = ArchSpec(name="toy", stem=Tokens(vocab_size=20), d_model=16, layers=layers, max_tokens=64)
    return dataclasses.replace(toy, **changes)
