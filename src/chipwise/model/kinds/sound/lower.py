"""Models of sound as OpGraphs: the same nodes, in the same order, as the graphs of ``model/kinds/sound/graph.py`` and
``model/kinds/sound/graph_published.py``."""

from __future__ import annotations

from chipwise.model.arch.design import Design
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.conv_module.lower import lower_module
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.layers import LayerOps, lower_layers
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.frames.lower import lower_characters, lower_frames
from chipwise.model.kinds.sound.hearing.lower import lower_sound
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase


def lower_transcriber(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` sounds, its only one, whatever it is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    TRANSCRIBER.require(arch, work="lowered as the graph that is exported")
    stem: SoundStem = arch.stem
    d, positions = arch.d_model, arch.max_tokens
    rows = batch * positions
    ops = lower_frames(arch, stem, weights=formats.head, batch=batch)
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in ops]
    layers = []
    for layer, weights in zip(arch.layers, formats.layers, strict=True):
        blocks: LayerOps = []
        if layer.attention is not None:
            blocks.append(("attention", _attention(layer.attention, positions, d, weights, batch=batch)))
        if layer.conv is not None:
            found = lower_module(layer.conv, d_model=d, weights=weights, batch=batch, positions=positions)
            blocks.append(("conv", found))
        if layer.ffn is not None:
            blocks.append(("ffn", lower_ffn(layer.ffn, d_model=d, weights=weights, rows=rows)))
        layers.append(blocks)
    inner, skip = lower_layers(arch, layers, rows=rows)
    placed += inner
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    placed.append(Placed(place="head.logits", op=lower_characters(arch, weights=formats.head, batch=batch)))
    return OpGraph(phase=phase, ops=tuple(placed))


def lower_listener(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass of a published model that hears over ``batch`` sounds, its only one.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    LISTENER.require(arch, work="lowered as the graph that is exported")
    stem: SoundStem = arch.stem
    d, positions = arch.d_model, stem.tokens
    rows = batch * positions
    ops = lower_sound(arch, stem, weights=formats.head, batch=batch)
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in ops]
    layers: list[LayerOps] = []
    for layer, weights in zip(arch.layers, formats.layers, strict=True):
        assert layer.attention is not None  # as ``LISTENER.require`` has checked, and of the feed-forward
        assert layer.ffn is not None
        attention = _attention(layer.attention, positions, d, weights, batch=batch)
        feed = lower_ffn(layer.ffn, d_model=d, weights=weights, rows=rows)
        layers.append([("attention", attention), ("ffn", feed)])
    inner, skip = lower_layers(arch, layers, rows=rows)
    placed += inner
    if arch.final_norm:
        placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    elif skip:
        placed.append(Placed(place="stream", op=Elementwise(function="add", elements=rows * d, inputs=2)))
    if arch.head == "ctc":
        head = Matmul(m=rows, k=d, n=arch.classes, weights=formats.head, bias=True)
        placed.append(Placed(place="head.logits", op=head))
    return OpGraph(phase=phase, ops=tuple(placed))


def _attention(block: Attention, positions: int, d_model: int, weights: str, *, batch: int) -> list[tuple[str, Op]]:
    """The operators of attention over all ``positions``, or within stretches of them, without the norm."""
    rows, width, tokens = batch * positions, block.query_width, block.chunk or positions
    attend = AttentionOp(
        batch=rows // tokens,
        query_tokens=tokens,
        past_tokens=0,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
    )
    return [
        ("qkv", Matmul(m=rows, k=d_model, n=3 * width, weights=weights, bias=block.qkv_bias)),
        ("split", Elementwise(function="split", elements=3 * rows * width)),
        ("attend", attend),
        ("out", Matmul(m=rows, k=width, n=d_model, weights=weights, bias=block.out_bias)),
    ]
