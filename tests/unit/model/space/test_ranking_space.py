"""Spaces of ranking models: every row is a design, prices of blocks add up to those of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.core.arrays import Float64Array
from chipwise.core.fields import build
from chipwise.design.prices.price_table import OperatorPricer, PriceTable
from chipwise.errors import SpecError
from chipwise.model.arch.design import Design
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.memory import layer_activation_bytes, memory_parts

RANKING: dict[str, Any] = {
    "items": 40,
    "history": 10,
    "candidates": 6,
    "tags": 5,
    "bag": 2,
    "mixing": ["attention", "hstu"],
    "table": ["full", "w8"],
    "score": ["similarity", "scores"],
}
FIELDS: dict[str, Any] = {
    "ranking": RANKING,
    "d_model": [16, 32],
    "depth": [1, 3],
    "head_size": [8, 16],
    "weights": ["fp32", "int8"],
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["relu", "swiglu", "none"], "ffn_width": [24, 48]},
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


@pytest.mark.parametrize("batch", [1, 5])
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
        held = memory.table_bytes + memory.matrix_bytes + memory.activation_bytes
        assert costs.peak_memory_bytes[i] == pytest.approx(held, abs=1)


def test_every_row_is_a_design_that_is_built_and_comes_back() -> None:
    space = space_of()
    for row in space.sample(80, np.random.default_rng(1)):
        arch = space.design(row).arch
        assert RANKER.builds(arch)
        assert not arch.reads_tokens
        assert arch.stem.candidates == 6
        np.testing.assert_array_equal(space.row(space.choices(row)), row)


def test_the_number_of_designs_by_pencil() -> None:
    """Widths, depths, heads' sizes, formats, kinds of attention, tables, scores and heads: 2 each, 256 in all.

    Five feed-forwards: two kinds of two widths, and none, whose width is nobody's choice.
    """
    assert space_of().size() == 256 * 5


def test_a_line_tells_designs_apart() -> None:
    space = space_of()
    rows = np.unique(space.sample(100, np.random.default_rng(3)), axis=0)
    assert len({summary(space.design(row)) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": [256]}, "vocab_size"),
        ({"sharing": ["pairs"]}, "sharing"),
        ({"layer": FIELDS["layer"] | {"kv_heads": [1]}}, "layer.kv_heads"),
        ({"ranking": RANKING | {"table": ["16"]}}, "ranking.table"),
        ({"ranking": RANKING | {"bag": 0}}, "bag"),
        ({"ranking": RANKING | {"mixing": []}}, "ranking.mixing"),
        ({"image": {"size": 28, "classes": 10, "patch": [4]}}, "ranking"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        space_of(**changes)
    assert field in str(caught.value)


def test_other_models_have_feed_forwards() -> None:
    text = {name: value for name, value in FIELDS.items() if name != "ranking"}
    layer = FIELDS["layer"] | {"kv_heads": [1]}
    with pytest.raises(SpecError, match="those of ranking models"):
        build(SpaceSpec, text | {"vocab_size": [256], "layer": layer})
