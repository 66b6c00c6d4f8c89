"""The latent decoder as operators. Their cost is spread evenly over all passes of an image."""

from __future__ import annotations

from chipwise.model.kinds.denoiser.latents.spec import KERNEL, Latents
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.once import Once
from chipwise.model.ops.op import Op


def lower_decoder(latents: Latents, stem: ImageStem, *, batch: int, passes: int) -> list[tuple[str, Op]]:
    """The operators that decode ``batch`` images from latents of ``stem``'s shape."""
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
