"""Shows how much time tile-aligned widths save, by predicting the winner's times at a neighbouring width."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from chipwise.core import units
from chipwise.design.targets.chance import value_of
from chipwise.design.targets.target import Target
from chipwise.errors import ChipwiseError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.predict.explain.rules.change import columns_of_tile, each_ffn, feed_forwards, up_to

STEP = 8  # columns added to a width of whole tiles; rows of 16-bit values are then still multiples of 16 bytes
TIMES = {"ttft_p50": "TTFT", "tpot_p50": "TPOT", "latency_p50": "latency"}


def alignment(design: Design, target: Target, sheet: DeviceProfile | None) -> str | None:
    """Says which widths of ``design`` are multiples of the chip's tile, and how the times change at another width.

    An aligned width is compared with a width that is up to ``STEP`` columns larger, and any other width with the next
    larger aligned width. Returns None unless the target is predicted from a data sheet, because only data sheets state
    tile sizes.
    """
    if sheet is None or target.measures:
        return None
    tile, arch = columns_of_tile(sheet, "bf16"), design.arch
    changes: dict[str, tuple[int, Callable[[int], ArchSpec]]] = {"model width": (arch.d_model, arch.of_width)}
    widths = {block.width for block in feed_forwards(arch)}
    if len(widths) == 1:
        changes["FFN width"] = widths.pop(), lambda other: each_ffn(arch, functools.partial(replace, width=other))
    found = []
    for name, (width, of) in changes.items():
        whole = width % tile == 0
        other = width + min(STEP, tile // 2) if whole else up_to(width, tile)
        try:
            then, now = target.predict(replace(design, arch=of(other))), target.predict(design)
        except ChipwiseError:  # the model cannot have this width, or does not fit with it
            continue
        times = [
            f"{label} {units.signed_percent(value_of(then[key]) / value_of(now[key]) - 1)}"
            for key, label in TIMES.items()
            if key in then and key in now
        ]
        found.append(
            f"{name} {width:,} is {'' if whole else 'not '}a multiple of {tile}; at {other:,} "
            f"({units.signed_percent(other / width - 1)}) {', '.join(times)}"
        )
    return f"predicted effect of alignment to the chip's tiles: {'. '.join(found)}" if found else None
