"""Spaces of transcribing models: every row is a design, prices of blocks add up to those of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.core.arrays import Float64Array
from chipwise.core.fields import build
from chipwise.design.prices.price_table import OperatorPricer, PriceTable
from chipwise.errors import SpecError
from chipwise.model.arch.design import Design
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.memory import layer_activation_bytes, memory_parts

SOUND: dict[str, Any] = {
    "size": 80,
    "classes": 7,
    "channels": 12,
    "stride": [2, 4],
    "window": ["global", "local8", "local10"],
    "module": ["none", "conv5"],
}
FIELDS: dict[str, Any] = {
    "sound": SOUND,
    "d_model": [16, 32],
    "depth": [1, 3],
    "head_size": [8, 16],
    "weights": ["fp32", "int8"],
    "layers": "alike",
    "norm": "layernorm",
    "layer": {"heads": [1, 2], "ffn": ["gelu", "swiglu"], "ffn_width": [24, 48]},
}


class CountingPricer(OperatorPricer):
    """Prices that are counts: seconds are FLOPs, and a thousand a node."""

    def op_columns(self, op: Op) -> Float64Array:
        return np.array([op.work().flops, 1.0], float)

    def latencies_s(self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array) -> Any:
        return prefill @ [1, 1e3], decode @ [1, 1e3]

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        parts = memory_parts(design, workload)
        return float(parts.table_bytes + parts.matrix_bytes)

    def activation_bytes(self, layer: Any, design: Design, workload: Workload) -> float:
        return 0.0 if layer is None else layer_activation_bytes(layer, design.arch, workload)

    def base_bytes(self) -> float:
        return 0.0


def space_of(**changes: Any) -> SearchSpace:
    return SearchSpace(build(SpaceSpec, FIELDS | changes))


@pytest.mark.parametrize("batch", [1, 3])
def test_prices_of_blocks_add_up_to_those_of_whole_models(batch: int) -> None:
    """FLOPs, nodes, parameters and memory of 60 designs, each lowered alone: exactly the sums of the table."""
    space, workload = space_of(), Workload(batch=batch)
    rows = space.sample(60, np.random.default_rng(0))
    pricer = CountingPricer()
    costs = PriceTable(space, workload, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        columns = sum(pricer.op_columns(placed.op) for placed in lower(design, workload, Phase.PREFILL))
        memory = memory_parts(design, workload)
        assert costs.ttft_s[i] == pytest.approx(columns @ [1, 1e3], rel=1e-12), summary(design)
        assert costs.parameters[i] == design.arch.parameters()
        stored = memory.table_bytes + memory.matrix_bytes + memory.activation_bytes
        assert costs.peak_memory_bytes[i] == pytest.approx(stored, rel=1e-12), summary(design)


def test_rows_are_models_that_can_be_built_and_stretches_divide_their_positions() -> None:
    """80 frames are 40 or 20 positions: 8 divides 40 alone, 10 divides both."""
    space = space_of()
    rows = space.sample(200, np.random.default_rng(1))
    seen = set()
    for row in rows:
        design = space.design(row)
        assert TRANSCRIBER.builds(design.arch), summary(design)
        assert np.array_equal(space.row(space.choices(row)), row)
        stem = design.arch.stem
        assert isinstance(stem, SoundStem)
        attention = design.arch.layers[0].attention
        assert attention is not None
        seen.add((stem.tokens, attention.chunk))
        assert stem.seconds == 0.8
    assert seen == {(40, None), (40, 8), (40, 10), (20, None), (20, 10)}
    assert {str(summary(space.design(row))).split(" d")[0] for row in rows} >= {"s2 local8 conv5", "s4 global"}
    assert len({tuple(row) for row in rows}) <= space.size()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"size": 82}, "multiple of 4"),
        ({"window": ["8x8"]}, "no window"),
        ({"window": ["local7"]}, "none divides 40"),
        ({"module": ["conv4"]}, "odd number"),
        ({"stride": [3]}, "stride"),
        ({"classes": 0}, "classes"),
    ],
)
def test_wrong_choices_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        space_of(sound=SOUND | changed)


def test_a_space_reads_one_kind_of_thing() -> None:
    image = {"size": 8, "classes": 2, "patch": [4]}
    with pytest.raises(SpecError, match="one of them"):
        space_of(image=image)
    with pytest.raises(SpecError, match="sounds have no vocabulary"):
        space_of(vocab_size=[100])
