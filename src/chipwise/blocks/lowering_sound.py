"""A transcribing model as an OpGraph: the same nodes, in the same order, as the graph of ``deploy/onnx_sound.py``."""

from __future__ import annotations

from chipwise.blocks.conv_module.lower import lower_module
from chipwise.blocks.ffn.lower import lower as lower_ffn
from chipwise.blocks.frames.lower import lower_characters, lower_frames
from chipwise.blocks.norm.lower import lower as lower_norm
from chipwise.ops import AttentionOp, Elementwise, Matmul, Op, OpGraph, Phase, Placed
from chipwise.spec import Attention, Design
from chipwise.spec.transcribing import require_transcriber


def lower_transcriber(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` sounds, its only one, whatever it is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    stem = require_transcriber(arch, work="lowered as the graph that is exported")
    d, positions = arch.d_model, arch.max_tokens
    rows, skip = batch * positions, False
    ops = lower_frames(arch, stem, weights=formats.head, batch=batch)
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in ops]
    for i, (layer, weights) in enumerate(zip(arch.layers, formats.layers, strict=True)):
        blocks: list[tuple[str, list[tuple[str, Op]]]] = []
        if layer.attention is not None:
            blocks.append(("attention", attention_ops(layer.attention, positions, d, weights, batch=batch)))
        if layer.conv is not None:
            found = lower_module(layer.conv, d_model=d, weights=weights, batch=batch, positions=positions)
            blocks.append(("conv", found))
        if layer.ffn is not None:
            blocks.append(("ffn", lower_ffn(layer.ffn, d_model=d, weights=weights, rows=rows)))
        for name, ops in blocks:
            place = f"layers.{i}.{name}"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip)))
            placed += [Placed(place=f"{place}.{inner}", op=op) for inner, op in ops]
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=rows, skip=skip)))
    placed.append(Placed(place="head.logits", op=lower_characters(arch, weights=formats.head, batch=batch)))
    return OpGraph(phase=phase, ops=tuple(placed))


def attention_ops(block: Attention, positions: int, d_model: int, weights: str, *, batch: int) -> list[tuple[str, Op]]:
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
