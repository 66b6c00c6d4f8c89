"""Calibration cases for nodes that only models of sound have, built with the blocks of exported models.

See :class:`chipwise.deploy.calibrate.microbench.Case`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chipwise.deploy.calibrate.microbench_ranking import CaseFields
from chipwise.model.arch.mixers import ConvModule
from chipwise.model.blocks.conv_module.lower import lower_filter
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.op import Op

if TYPE_CHECKING:
    from chipwise.deploy.calibrate.microbench import Case

SOUND_KINDS = ("conv.centred", "sigmoid")
POSITIONS = ((50, 32), (100, 64), (100, 128), (200, 48), (200, 96), (400, 64))  # positions and width


def sound_op(case: Case) -> Op:
    """Operator of a case: ``rows`` positions with ``k`` values; convolutions have ``n`` taps."""
    if case.kind == "sigmoid":
        return Elementwise(function="sigmoid", elements=case.rows * case.k)
    return lower_filter(ConvModule(taps=case.n), d_model=case.k, batch=1, positions=case.rows)


def sound_cases() -> Iterator[CaseFields]:
    """Fields of the cases; every calibration includes other sizes of the same kinds."""
    for number, (rows, width) in enumerate(POSITIONS):
        for taps in (3, 15, 31):
            yield {"kind": "conv.centred", "count": 2, "rows": rows, "k": width, "n": taps}
        for kind in ("sigmoid", "pad", "split", *(("layernorm", "gelu", "silu", "add") if number % 3 == 1 else ())):
            yield {"kind": kind, "count": 8, "rows": rows, "k": width if kind != "split" else 3 * width}
        yield {"kind": "transpose", "count": 4, "rows": rows, "k": width}
        yield {"kind": "gather", "count": 4, "rows": 3 * rows, "k": width, "n": rows}
        for weights in ("fp32", "int8"):
            for k, n in ((3 * width, width), (width, 4 * width), (width, 21)):
                yield {"kind": "matmul", "weights": weights, "count": 2, "rows": rows, "k": k, "n": n}
    for rows, heads, head_size in ((10, 2, 16), (20, 2, 32), (50, 2, 32), (100, 2, 32), (100, 4, 16), (200, 2, 32)):
        yield CaseFields(kind="attention.full", count=2, rows=rows, heads=heads, kv_heads=heads, head_size=head_size)
