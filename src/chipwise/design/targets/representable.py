"""Checks whether a runtime can serve the designs of a space: the runtime's file format must support every choice."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace

from chipwise.deploy.export.gguf import layout
from chipwise.design.targets.formats import format_there, suffix_there
from chipwise.errors import MissingExtra, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import ffn_block


def check_space(space: SearchSpace, runtime: str) -> None:
    """Checks that ``runtime`` supports all weight formats and blocks of the space.

    Raises:
        Unsupported: The runtime lacks a format or block; the message names the choice.
        MissingExtra: The package that writes files for the runtime is not installed.
    """
    spec = space.spec
    for name in (*spec.formats, *(spec.layer.weights or ())):
        format_there(name, runtime)
    if suffix_there(runtime) != ".gguf":
        return
    if spec.own is not None:
        raise Unsupported(f"{runtime} serves models of text, not of {spec.own.noun}; use a runtime such as onnxruntime")
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("gguf", "gguf")
    for conv in spec.conv:
        for kind in spec.layer.ffn:
            layout(_smallest(space, conv, kind))
    one = _smallest(space, spec.conv[0], spec.layer.ffn[0])
    for norm, place in itertools.product(spec.norms, spec.norm_place):
        layout(replace(one, norm=norm, norm_place=place, final_norm=place != "post"))


def _smallest(space: SearchSpace, conv: str, kind: str) -> ArchSpec:
    """A design with one layer that has the given choices, and the smallest value of every other choice."""
    spec = space.spec
    heads, kv_heads = spec.attention_choices()[0]
    layer = Layer(
        attention=Attention(heads=heads, kv_heads=kv_heads, head_size=spec.head_size[0]),
        ffn=ffn_block(kind, spec.layer.ffn_width[0]),
        attention_conv=spec.conv_taps if conv in ("attention", "both") else 0,
        ffn_conv=spec.conv_taps if conv in ("ffn", "both") else 0,
    )
    return ArchSpec(
        name="a design of the space",
        stem=Tokens(vocab_size=256),
        d_model=spec.d_model[0],
        layers=(layer,),
        max_tokens=spec.max_tokens,
        norm=spec.norms[0],
    )
