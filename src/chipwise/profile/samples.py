"""Random small designs: what calibration checks itself on, and what the published comparison measures."""

from __future__ import annotations

import random
from collections.abc import Sequence

from chipwise.spec import ArchSpec, Attention, Design, FeedForward, Layer
from chipwise.spec.arch import Activation

WEIGHTS = ("fp32", "int8", "int4")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "gelu_tanh", "silu")  # those that every runtime has a node for
CONVS = ((0, 0), (0, 0), (4, 0), (4, 4))  # taps before attention and before feed-forward


def random_designs(count: int, *, seed: int, max_tokens: int = 256) -> list[Design]:
    """``count`` designs of 1-8 layers that all differ, 64-512 wide, with each weight format in turn."""
    generator = random.Random(seed)
    return [_design(generator, i, max_tokens) for i in range(count)]


def _design(generator: random.Random, number: int, max_tokens: int) -> Design:
    d_model = generator.choice(range(64, 513, 32))
    convs = generator.choice(CONVS)
    arch = ArchSpec(
        name=f"random-{number}",
        vocab_size=generator.choice((512, 1024, 2048, 4096, 8192)),
        d_model=d_model,
        layers=tuple(_layer(generator, *convs) for _ in range(generator.randint(1, 8))),
        max_tokens=max_tokens,
        tie_embeddings=generator.random() < 0.75,
        norm="rmsnorm" if generator.random() < 0.8 else "layernorm",
    )
    return Design(arch=arch, weights=WEIGHTS[number % len(WEIGHTS)])


def _layer(generator: random.Random, attention_conv: int, ffn_conv: int) -> Layer:
    heads = generator.choice((1, 2, 4, 8))
    groups: Sequence[int] = [h for h in (1, 2, 4, 8) if h <= heads]
    attention = Attention(heads=heads, kv_heads=generator.choice(groups), head_size=generator.choice((16, 32, 64)))
    ffn = FeedForward(
        width=generator.choice((64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)),
        activation=generator.choice(ACTIVATIONS),
        gated=generator.random() < 0.5,
    )
    return Layer(attention=attention, ffn=ffn, attention_conv=attention_conv, ffn_conv=ffn_conv)
