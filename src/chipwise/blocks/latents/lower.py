"""The decoder of latents as operators, each charged to all passes of an image."""

from __future__ import annotations

from chipwise.ops import ConvOp, Elementwise, Once, Op
from chipwise.spec.latents import KERNEL, Latents
from chipwise.spec.stem import ImageStem


def lower_decoder(latents: Latents, stem: ImageStem, *, batch: int, passes: int) -> list[tuple[str, Op]]:
    """The operators that make ``batch`` images of latents of ``stem``'s shape."""
    cells, ops = stem.image_size**stem.axes, list[tuple[str, Op]]()
    for i, (into, out) in enumerate(latents.shapes(stem.channels)):
        if i:
            ops.append(("activation", Elementwise(function="gelu", elements=batch * cells * into)))
        taps = KERNEL**stem.axes
        conv = ConvOp(batch=batch, positions=cells, in_channels=into, out_channels=out, taps=taps, bias=True)
        ops.append((f"convs.{i}", conv))
    pixels = batch * cells * latents.factor**stem.axes * latents.channels
    ops.append(("pixels", Elementwise(function="transpose", elements=pixels)))
    return [(name, Once(op=op, passes=passes)) for name, op in ops]
