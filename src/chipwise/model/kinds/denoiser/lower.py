"""One pass of a denoiser as an OpGraph: the same nodes, in the same order, as the graph of
``model/kinds/denoiser/graph.py``.

An image takes ``ArchSpec.passes`` of them; what decodes latents after the last is charged to all alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from chipwise.model.arch.design import Design
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.latents.lower import lower_decoder
from chipwise.model.kinds.denoiser.modulation.lower import lower_gate, lower_modulated, lower_pixels, lower_told
from chipwise.model.kinds.denoiser.parts import parts_of
from chipwise.model.kinds.image.patches.lower import lower_patches
from chipwise.model.kinds.image.windows.lower import attention_ops
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase


def lower_denoiser(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` images, whatever the pass is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    DENOISER.require(arch, work="lowered as the graph that is exported")
    stem, denoiser = parts_of(arch)
    head, rows, placed = formats.head, batch * stem.tokens, list[Placed]()

    def put(place: str, ops: Iterable[tuple[str, Op]]) -> None:
        placed.extend(Placed(place=f"{place}.{name}", op=op) for name, op in ops)

    put("told", lower_told(arch, denoiser, weights=head, batch=batch))
    put("stem", lower_patches(arch, stem, weights=head, batch=batch))
    skip = False
    for i, (layer, weights) in enumerate(zip(arch.layers, formats.layers, strict=True)):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            put(place, lower_modulated(arch, rows=rows, skip=skip))
            put(place, attention_ops(layer.attention, stem, arch.d_model, weights, batch=batch, layer=i))
            put(place, [lower_gate(arch, rows=rows)])
            skip = True
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            put(place, lower_modulated(arch, rows=rows, skip=skip))
            put(place, lower_ffn(layer.ffn, d_model=arch.d_model, weights=weights, rows=rows))
            put(place, [lower_gate(arch, rows=rows)])
            skip = True
    put("end", lower_modulated(arch, rows=rows, skip=skip))
    put("head", lower_pixels(arch, stem, denoiser, weights=head, batch=batch))
    if denoiser.latents is not None:
        put("decoder", lower_decoder(denoiser.latents, stem, batch=batch, passes=denoiser.passes))
    return OpGraph(phase=phase, ops=tuple(placed))
