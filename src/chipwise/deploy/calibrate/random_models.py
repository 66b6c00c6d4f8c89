"""Models for calibration: random small ones, a few large ones, and simpler variants for limited runtimes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from chipwise.deploy.export.exporters import export_for
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes, LmHead, Tokens
from chipwise.model.arch.feed_forward import Activation, FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.image.distances.spec import bias_rows
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.ranking.stem import RankingStem, Scores, Similarity
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem

WEIGHTS = ("fp32", "int8", "int4")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "gelu_tanh", "silu")  # supported by every runtime
CONVS = ((0, 0), (0, 0), (4, 0), (4, 4))  # convolution taps before attention and before the feed-forward


def random_designs(count: int, *, seed: int, max_tokens: int = 256) -> list[Design]:
    """``count`` different designs with 1 to 8 layers, widths of 64 to 512, cycling through the weight formats."""
    generator = random.Random(seed)
    return [_design(generator, i, max_tokens) for i in range(count)]


def _design(generator: random.Random, number: int, max_tokens: int) -> Design:
    d_model = generator.choice(range(64, 513, 32))
    convs = generator.choice(CONVS)
    arch = ArchSpec(
        name=f"random-{number}",
        stem=Tokens(vocab_size=generator.choice((512, 1024, 2048, 4096, 8192))),
        head=LmHead(tied=generator.random() < 0.75),
        d_model=d_model,
        layers=tuple(_layer(generator, *convs) for _ in range(generator.randint(1, 8))),
        max_tokens=max_tokens,
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


def random_classifiers(count: int, *, seed: int) -> list[Design]:
    """``count`` different image classifiers with 1 to 6 layers, widths of 32 to 192, cycling through the formats."""
    generator = random.Random(seed)
    return [_classifier(generator, i) for i in range(count)]


def _classifier(generator: random.Random, number: int) -> Design:
    size, patch = generator.choice(((28, 14), (28, 7), (28, 7), (28, 4), (28, 4), (32, 8), (32, 4), (28, 2)))
    channels = generator.choice((4, 8, 16))
    halved = [(channels,)] * (patch % 2 == 0) + [(4, channels)] * (patch % 4 == 0)
    convs: tuple[int, ...] = generator.choice([(), (), *halved])
    first = generator.random() < 0.5
    stem = ImageStem(
        image_size=size, patch=patch, channels=generator.choice((1, 3)), convs=convs, prefix_tokens=int(first)
    )
    heads, head_size = generator.choice((1, 2, 4)), generator.choice((16, 32, 64))
    relative = generator.random() < 0.35
    ffn = FeedForward(
        width=generator.choice((32, 64, 96, 128, 192, 256, 384, 512)),
        activation=generator.choice(ACTIVATIONS),
        gated=generator.random() < 0.4,
        bias=True,
    )
    attention = Attention(
        heads=heads, kv_heads=heads, head_size=head_size, qkv_bias=True, out_bias=True, rope=False, causal=False,
        relative_buckets=bias_rows(stem) if relative else 0,
    )  # fmt: skip
    arch = ArchSpec(
        name=f"classifier-{number}",
        stem=stem,
        head=Classes(count=generator.choice((10, 10, 100)), pooling="first" if first else "mean"),
        d_model=generator.choice(range(32, 193, 16)),
        layers=(Layer(attention=attention, ffn=ffn),) * generator.randint(1, 6),
        max_tokens=stem.tokens,
        norm="layernorm" if generator.random() < 0.8 else "rmsnorm",
        positions="none" if relative else "learned",
    )
    return Design(arch=arch, weights=WEIGHTS[number % len(WEIGHTS)])


def random_rankers(count: int, *, seed: int) -> list[Design]:
    """``count`` different ranking models with 1 to 4 layers, widths of 32 to 128, alternating FP32 and int8.

    A third of the models rank one candidate per request, the others rank 4 to 512.
    """
    generator = random.Random(seed)
    return [_ranker(generator, i) for i in range(count)]


def _ranker(generator: random.Random, number: int) -> Design:
    history = generator.choice((16, 32, 50, 50, 100))
    bag = generator.choice((0, 0, 3))
    stem = RankingStem(
        items=generator.choice((500, 2_000, 10_000)),
        history=history,
        candidates=1 if number % 3 == 0 else generator.choice((4, 8, 16, 32, 64, 128, 128, 256, 512)),
        width=generator.choice((0, 0, 16, 32)),
        tags=20 if bag else 0,
        bag=bag,
    )
    heads, head_size = generator.choice((1, 2, 4)), generator.choice((16, 32, 64))
    pointwise = generator.random() < 0.5
    attention = Attention(
        heads=heads, kv_heads=heads, head_size=head_size, rope=False, relative_buckets=history + 1, pointwise=pointwise
    )
    ffn = FeedForward(
        width=generator.choice((32, 64, 128, 192, 256, 384)),
        activation=generator.choice(ACTIVATIONS),
        gated=generator.random() < 0.4,
    )
    arch = ArchSpec(
        name=f"ranker-{number}",
        d_model=generator.choice(range(32, 129, 16)),
        layers=(Layer(attention=attention, ffn=None if pointwise and generator.random() < 0.5 else ffn),)
        * generator.randint(1, 4),
        max_tokens=history + 1,
        norm="rmsnorm" if generator.random() < 0.7 else "layernorm",
        positions="none",
        head=generator.choice((Scores(), Similarity())),
        stem=stem,
    )
    return Design(arch=arch, weights=("fp32", "int8")[number % 2])


def random_transcribers(count: int, *, seed: int) -> list[Design]:
    """``count`` different sound models with 1 to 6 layers, widths of 32 to 160, cycling through the formats."""
    generator = random.Random(seed)
    return [_transcriber(generator, i) for i in range(count)]


def _transcriber(generator: random.Random, number: int) -> Design:
    d_model = generator.choice(range(32, 161, 16))
    convs = tuple(frame_conv(d_model, stride) for stride in generator.choice(((1, 2), (2, 2), (2, 2))))
    stem = SoundStem(
        seconds=generator.choice((1.0, 2.0, 4.0)), rate=100.0, channels=generator.choice((40, 40, 80)), convs=convs
    )
    heads, head_size = generator.choice((1, 2, 4)), generator.choice((16, 32, 64))
    attention = Attention(
        heads=heads, kv_heads=heads, head_size=head_size, qkv_bias=True, out_bias=True, rope=False, causal=False,
        chunk=generator.choice((None, None, 25)),
    )  # fmt: skip
    ffn = FeedForward(
        width=generator.choice((64, 96, 128, 192, 256, 384, 512)),
        activation=generator.choice(ACTIVATIONS),
        gated=generator.random() < 0.4,
        bias=True,
    )
    conv = generator.choice((None, *(ConvModule(taps=taps, norm="layer") for taps in (7, 15, 31))))
    arch = ArchSpec(
        name=f"transcriber-{number}",
        stem=stem,
        head=Ctc(count=generator.choice((21, 30, 80))),
        d_model=d_model,
        layers=(Layer(attention=attention, ffn=ffn, conv=conv),) * generator.randint(1, 6),
        max_tokens=stem.tokens,
        norm="layernorm" if generator.random() < 0.8 else "rmsnorm",
        positions="learned",
    )
    return Design(arch=arch, weights=WEIGHTS[number % len(WEIGHTS)])


def large_designs() -> list[Design]:
    """Models of 130 to 420 MB, which exceed the caches: one like GPT-2 and one like Llama, in each format."""
    gpt = uniform(
        name="gpt-large",
        vocab_size=16384,
        d_model=768,
        depth=12,
        heads=12,
        ffn_width=3072,
        activation="gelu_tanh",
        gated=False,
        max_tokens=256,
    )
    llama = uniform(
        name="llama-large",
        vocab_size=16384,
        d_model=1024,
        depth=14,
        heads=16,
        kv_heads=4,
        ffn_width=2816,
        max_tokens=256,
    )
    wide = replace(llama.of_vocabulary(24576), name="llama-wide", layers=llama.layers[:4])
    return [
        Design(arch=gpt),
        Design(arch=llama, weights="int8"),
        Design(arch=wide),
        Design(arch=llama, weights="int4"),
    ]


def variants(design: Design) -> Iterator[Design]:
    """``design``, then simpler designs: without convolutions, Llama-like, and Llama-like in FP32."""
    arch = design.arch
    bare = tuple(replace(layer, attention_conv=0, ffn_conv=0) for layer in arch.layers)
    sizes = [layer.attention.head_size for layer in arch.layers if layer.attention is not None]
    layers = tuple(
        replace(
            layer,
            attention=layer.attention and replace(layer.attention, head_size=max([32, *sizes[:1]])),
            ffn=layer.ffn and replace(layer.ffn, activation="silu", gated=True),
        )
        for layer in bare
    )
    without = replace(design, arch=replace(arch, layers=bare))
    plain = replace(design, arch=replace(arch, layers=layers, norm="rmsnorm", norm_bias=False))
    yield from (design, without, plain)
    yield from (replace(variant, weights="fp32") for variant in (design, without, plain))


def export_nearest(runtime: str, design: Design, folder: Path) -> tuple[Design, Path]:
    """The first of ``design``'s variants that ``runtime`` supports, and its exported file.

    Raises:
        Unsupported: The runtime supports none of them.
    """
    refusals: list[Unsupported] = []
    for variant in variants(design):
        try:
            return variant, export_for(runtime, variant, folder)
        except Unsupported as error:
            refusals.append(error)
    raise refusals[0]
