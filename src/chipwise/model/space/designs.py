"""Converts named choices to a design, and a design to one line of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import UNSHIFTED
from chipwise.model.kinds.image.choices import EVERYWHERE, LEARNED, ImageSpace, denoiser_of, square_of, stem_name
from chipwise.model.kinds.ranking.choices import RankingSpace, table_name
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sound.choices import GLOBAL, NO_MODULE, SoundSpace, module_name, module_of, window_of
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.space.space_spec import FFN_KINDS, SpaceSpec, ffn_block


def design_of(choices: Mapping[str, Any], *, spec: SpaceSpec, name: str = "candidate") -> Design:
    """The design that ``choices`` describe; values outside the space's lists are allowed."""
    if spec.image is not None:
        return _classifier(choices, spec, spec.image, name)
    if spec.ranking is not None:
        return _ranker(choices, spec, spec.ranking, name)
    if spec.sound is not None:
        return _transcriber(choices, spec, spec.sound, name)
    paired = choices["sharing"] == "pairs"
    conv = choices.get("conv", "none")
    layers = []
    for i, layer in enumerate(choices["layers"]):
        layers.append(
            Layer(
                attention=Attention(heads=layer["heads"], kv_heads=layer["kv_heads"], head_size=choices["head_size"]),
                ffn=ffn_block(layer["ffn"], layer["ffn_width"]),
                shares=i - 1 if paired and i % 2 else None,
                attention_conv=0 if conv == "none" else spec.conv_taps,
                ffn_conv=spec.conv_taps if conv == "both" else 0,
            )
        )
    arch = ArchSpec(
        name=name,
        vocab_size=choices["vocab_size"],
        d_model=choices["d_model"],
        layers=tuple(layers),
        max_tokens=spec.max_tokens,
        tie_embeddings=choices["tie_embeddings"],
        norm=spec.norm,
    )
    head = choices["weights"]
    return Design(arch=arch, weights=formats_word((layer.get("weights", head) for layer in choices["layers"]), head))


def image_layer(
    *,
    heads: int,
    head_size: int,
    ffn: tuple[str, int] | None,
    square: str,
    bias_rows: int = 0,
    cross: bool = False,
) -> Layer:
    """A layer of an image classifier, with ViT's biases and a table of position biases.

    With ``cross`` attention of as many heads to the image follows.
    """
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        qkv_bias=True,
        out_bias=True,
        rope=False,
        causal=False,
        square=square_of(square),
        relative_buckets=bias_rows,
    )
    block = None if ffn is None else ffn_block(*ffn)
    biased = None if block is None else replace(block, bias=True)
    return Layer(attention=attention, ffn=biased, cross=attention if cross else None)


def image_arch(
    choices: Mapping[str, Any], layers: Iterable[Layer], *, spec: SpaceSpec, image: ImageSpace, d_model: int, name: str
) -> ArchSpec:
    """The classifier, or the denoiser, of ``layers`` with the stem and the pooling of ``choices``."""
    stem = image.stem_of(choices)
    denoiser = denoiser_of(choices, image)
    if denoiser is not None:
        return ArchSpec(
            name=name,
            vocab_size=0,
            d_model=d_model,
            layers=tuple(layers),
            max_tokens=stem.tokens,
            norm="layernorm",
            norm_weight=False,
            norm_eps=1e-6,
            positions="learned",
            head="none",
            stem=stem,
            denoiser=denoiser,
        )
    asked = image.asked(choices, d_model) if image.question else {}
    return ArchSpec(
        name=name,
        vocab_size=0,
        d_model=d_model,
        layers=tuple(layers),
        norm=spec.norm,
        norm_bias=spec.norm == "layernorm",
        positions="learned" if choices.get("positions", LEARNED) == LEARNED else "none",
        head="classes",
        classes=image.classes,
        stem=stem,
        **({"max_tokens": stem.tokens, "pooling": choices["pooling"]} | asked),
    )


def _classifier(choices: Mapping[str, Any], spec: SpaceSpec, image: ImageSpace, name: str) -> Design:
    layers = [
        image_layer(
            heads=layer["heads"],
            head_size=choices["head_size"],
            ffn=(layer["ffn"], layer["ffn_width"]),
            square=(square := layer.get("square", EVERYWHERE)),
            bias_rows=image.bias_rows(choices, square),
            cross=image.crosses(choices),
        )
        for layer in choices["layers"]
    ]
    arch = image_arch(choices, layers, spec=spec, image=image, d_model=choices["d_model"], name=name)
    head = choices["weights"]
    return Design(arch=arch, weights=formats_word((layer.get("weights", head) for layer in choices["layers"]), head))


def ranking_layer(
    *, heads: int, head_size: int, ffn: tuple[str, int] | None, mixing: str, ranking: RankingSpace
) -> Layer:
    """A layer of a ranking model: attention with a bias by distance, without other biases."""
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        rope=False,
        relative_buckets=ranking.history + 1,
        pointwise=mixing == "hstu",
    )
    return Layer(attention=attention, ffn=None if ffn is None else ffn_block(*ffn))


def ranking_arch(
    choices: Mapping[str, Any],
    layers: Iterable[Layer],
    *,
    spec: SpaceSpec,
    ranking: RankingSpace,
    d_model: int,
    name: str,
) -> ArchSpec:
    """The ranking model of ``layers`` with the tables and the scores of ``choices``."""
    return ArchSpec(
        name=name,
        vocab_size=0,
        d_model=d_model,
        layers=tuple(layers),
        max_tokens=ranking.history + 1,
        norm=spec.norm,
        positions="none",
        head=choices["score"],
        stem=ranking.stem_of(choices),
    )


def _ranker(choices: Mapping[str, Any], spec: SpaceSpec, ranking: RankingSpace, name: str) -> Design:
    layers = [
        ranking_layer(
            heads=layer["heads"],
            head_size=choices["head_size"],
            ffn=(layer["ffn"], layer["ffn_width"]),
            mixing=choices["mixing"],
            ranking=ranking,
        )
        for layer in choices["layers"]
    ]
    arch = ranking_arch(choices, layers, spec=spec, ranking=ranking, d_model=choices["d_model"], name=name)
    head = choices["weights"]
    return Design(arch=arch, weights=formats_word((layer.get("weights", head) for layer in choices["layers"]), head))


def sound_layer(choices: Mapping[str, Any], *, heads: int, head_size: int, ffn: tuple[str, int] | None) -> Layer:
    """A layer of a transcribing model, with the biases that Whisper has."""
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        qkv_bias=True,
        out_bias=True,
        rope=False,
        causal=False,
        chunk=window_of(choices["window"]),
    )
    block = None if ffn is None else ffn_block(*ffn)
    return Layer(
        attention=attention,
        ffn=None if block is None else replace(block, bias=True),
        conv=module_of(choices["module"]),
    )


def sound_arch(
    choices: Mapping[str, Any], layers: Iterable[Layer], *, spec: SpaceSpec, sound: SoundSpace, d_model: int, name: str
) -> ArchSpec:
    """The transcribing model of ``layers`` with the stem of ``choices``."""
    stem = sound.stem_of(choices, d_model)
    return ArchSpec(
        name=name,
        vocab_size=0,
        d_model=d_model,
        layers=tuple(layers),
        max_tokens=stem.tokens,
        norm=spec.norm,
        norm_bias=spec.norm == "layernorm",
        positions="learned",
        head="ctc",
        classes=sound.classes,
        stem=stem,
    )


def _transcriber(choices: Mapping[str, Any], spec: SpaceSpec, sound: SoundSpace, name: str) -> Design:
    layers = [
        sound_layer(
            choices,
            heads=layer["heads"],
            head_size=choices["head_size"],
            ffn=(layer["ffn"], layer["ffn_width"]),
        )
        for layer in choices["layers"]
    ]
    arch = sound_arch(choices, layers, spec=spec, sound=sound, d_model=choices["d_model"], name=name)
    head = choices["weights"]
    return Design(arch=arch, weights=formats_word((layer.get("weights", head) for layer in choices["layers"]), head))


def summary(design: Design) -> str:
    """One line to compare designs by: width, depth, convolutions, heads, FFN, vocabulary, formats."""
    arch = design.arch
    attention = [layer.attention for layer in arch.layers if layer.attention]
    ffn = [layer.ffn for layer in arch.layers if layer.ffn]
    heads = _joined([f"{a.heads}/{a.kv_heads}" for a in attention])
    feed = _joined([_feed(block) for block in ffn]) if ffn else "no FFN"
    if isinstance(arch.stem, RankingStem):
        mixing = "hstu" if any(block.pointwise for block in attention) else "attention"
        heads = _joined([f"{a.heads}x{a.head_size}" for a in attention])
        ends = f"{table_name(arch.stem)} {arch.head}"
        return f"{mixing} {ends} d{arch.d_model} L{len(arch.layers)} h{heads} {feed} {design.weights}"
    if isinstance(arch.stem, SoundStem):
        window = attention[0].chunk if attention else None
        seen = GLOBAL if window is None else f"local{window}"
        module = module_name(arch.layers[0].conv)
        ends = f"s{round(arch.stem.frames / arch.stem.tokens)} {seen}" + (f" {module}" if module != NO_MODULE else "")
        heads = _joined([f"{a.heads}x{a.head_size}" for a in attention])
        return f"{ends} d{arch.d_model} L{len(arch.layers)} h{heads} {feed} {design.weights}"
    if arch.stem is not None:
        squares = _joined([f"{a.square}x{a.square}" if a.square else "all" for a in attention])
        inside = f" in {squares}" if any(a.square for a in attention) else ""
        inside += " relative" if any(a.relative_buckets for a in attention) else ""
        pooling = "class token" if arch.pooling == "first" else arch.pooling
        stem = f"p{arch.stem.patch} {stem_name(arch.stem)} {pooling}"
        if arch.question is not None and arch.projector is not None:
            merged = "joined " if arch.projector.join > 1 else "mean " if arch.projector.pool > 1 else ""
            stem = f"p{arch.stem.patch} {stem_name(arch.stem)} {merged}{arch.image_tokens}+{arch.question.tokens}"
            inside += " cross" if arch.crosses else ""
        if arch.denoiser is not None:
            told = " of shortcuts" if arch.denoiser.shortcut else ""
            guided = f" guided {arch.denoiser.guidance:g}" if arch.denoiser.guided else ""
            latents = f" latents {arch.denoiser.latents.factor}" if arch.denoiser.latents else ""
            solver = " multistep" if arch.denoiser.solver == "multistep" else ""
            solver += f" shift {arch.denoiser.shift:g}" if arch.denoiser.shift != UNSHIFTED else ""
            stem = f"{arch.denoiser.steps} steps{told}{solver}{guided}{latents} p{arch.stem.patch}"
        heads = _joined([f"{a.heads}x{a.head_size}" for a in attention])
        return f"{stem} d{arch.d_model} L{len(arch.layers)} h{heads}{inside} {feed} {design.weights}"
    tied = "tied" if arch.tie_embeddings else "untied"
    shared = " shared" if any(layer.shares is not None for layer in arch.layers) else ""
    blocks = "both" if arch.layers[0].ffn_conv else "attention" if arch.layers[0].attention_conv else ""
    shared += f" conv:{blocks}" if blocks else ""
    return f"d{arch.d_model} L{len(arch.layers)}{shared} h{heads} {feed} v{arch.vocab_size} {tied} {design.weights}"


def _feed(block: FeedForward | MixtureOfExperts) -> str:
    """Kind and width of a feed-forward, preceded by the numbers of experts and active experts."""
    if isinstance(block, MixtureOfExperts):
        return f"{block.experts}x{block.active}:{_feed(block.expert)}"
    kinds = {(act, gated): kind for kind, (act, gated) in FFN_KINDS.items()}
    return f"{kinds.get((block.activation, block.gated), block.activation)}:{block.width}"


def _joined(items: list[str]) -> str:
    """Layers in order, with counts of equal neighbours: ``swiglu:64-swiglu:128x3``."""
    if len(set(items)) == 1:
        return items[0]
    counted = [(item, len(list(alike))) for item, alike in groupby(items)]
    return "-".join(item if count == 1 else f"{item}x{count}" for item, count in counted)
