"""Converts choices to a design, and a design to one line of text."""

from __future__ import annotations

from dataclasses import replace

from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.choices import Chosen, Whole
from chipwise.model.kinds.form import Sketch, joined
from chipwise.model.kinds.table import form_of
from chipwise.model.space.space_spec import FFN_KINDS, NO_FFN, SpaceSpec, ffn_block


def design_of(choices: Chosen, *, spec: SpaceSpec, name: str = "candidate") -> Design:
    """The design that ``choices`` describe; values outside the space's lists are allowed."""
    kind, paired, conv = spec.kind, choices["sharing"] == "pairs", choices.get("conv", "none")
    layers = []
    for i, layer in enumerate(choices["layers"]):
        ffn = ffn_block(layer["ffn"], layer["ffn_width"])
        made = kind.layer(choices, kind.parts(layer), head_size=choices["head_size"], ffn=ffn)
        layers.append(
            replace(
                made,
                shares=i - 1 if paired and i % 2 else None,
                attention_conv=0 if conv == "none" else spec.conv_taps,
                ffn_conv=spec.conv_taps if conv == "both" else 0,
            )
        )
    norm, place = (choices.get(each, spec.usual(each)) for each in ("norm", "norm_place"))
    whole = Whole(name=name, d_model=choices["d_model"], norm=norm, max_tokens=spec.max_tokens, norm_place=place)
    arch, head = kind.arch(choices, layers, whole), choices["weights"]
    return Design(arch=arch, weights=formats_word((layer.get("weights", head) for layer in choices["layers"]), head))


def summary(design: Design) -> str:
    """A design in one line: width, depth, convolutions, heads, feed-forward, vocabulary and formats."""
    arch = design.arch
    words = form_of(arch).sketch(arch)
    heads = joined([_heads(layer.attention, words) for layer in arch.layers])
    feed = joined([_feed(layer.ffn) for layer in arch.layers]) if any(layer.ffn for layer in arch.layers) else "no FFN"
    sizes = f"d{arch.d_model} L{len(arch.layers)}{words.layers} h{heads}{words.attention} {feed}"
    return " ".join(filter(None, (words.first, sizes, words.last, design.weights)))


def _heads(block: Attention | None, words: Sketch) -> str:
    """Number of heads and of KV heads, or of heads and their size; ``none`` without attention."""
    if block is None:
        return "none"
    return f"{block.heads}/{block.kv_heads}" if words.groups else f"{block.heads}x{block.head_size}"


def _feed(block: FeedForward | MixtureOfExperts | None) -> str:
    """Kind and width of a feed-forward, or ``none``. A mixture also states its number of experts and active experts."""
    if block is None:
        return NO_FFN
    if isinstance(block, MixtureOfExperts):
        return f"{block.experts}x{block.active}:{_feed(block.expert)}"
    kinds = {(act, gated): kind for kind, (act, gated) in FFN_KINDS.items()}
    groups = f"-g{block.groups}" if block.groups > 1 else ""
    return f"{kinds.get((block.activation, block.gated), block.activation)}{groups}:{block.width}"
