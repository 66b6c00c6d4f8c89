"""SpaceSuite: checks that a space's rows encode valid designs, and that counts, prices and summaries agree with them.

Subclass it in a test module and return spaces by name; pytest then runs every check on each::

    class TestMySpaces(SpaceSuite):
        def spaces(self):
            return {"alike": my_space(), "each": my_space(layers="each")}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

import numpy as np
import pytest

from chipwise.core.arrays import Float64Array
from chipwise.design.prices.price_table import OperatorPricer, PriceTable
from chipwise.errors import SpecError
from chipwise.model.arch.design import Design
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.table import form_of
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.memory import layer_activation_bytes, memory_parts

MOST_ROWS = 50_000  # most rows of a space that is enumerated
NODE_S = 1e3  # price of a node; a FLOP's price is 1


class CountingPricer(OperatorPricer):
    """Prices that are exact counts: FLOPs, 1,000 per node, and the bytes of weights, cache and activations."""

    def op_columns(self, op: Op) -> Float64Array:
        """FLOPs and number of nodes of an operator, (2,)."""
        return np.array([op.work().flops, 1.0], np.float64)

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Sums of the columns, which already include the logits."""
        return prefill @ [1.0, NODE_S], decode @ [1.0, NODE_S]

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Bytes of weights and cache."""
        parts = memory_parts(design, workload)
        return float(parts.table_bytes + parts.matrix_bytes + parts.kv_bytes)

    def activation_bytes(self, layer: Layer | None, design: Design, workload: Workload) -> float:
        """Bytes of a layer's activations; none for the head."""
        return 0.0 if layer is None else layer_activation_bytes(layer, design.arch, workload)

    def base_bytes(self) -> float:
        """0: no memory besides the model."""
        return 0.0


class SpaceSuite:
    """The checks; each runs on every space of :meth:`spaces`, on ``draws`` random rows."""

    draws = 60
    batches = (1, 3)

    def spaces(self) -> Mapping[str, SpaceSpec]:
        """The spaces to test by name, each with two values of ``d_model`` or more."""
        raise NotImplementedError("override `spaces`")

    def _each(self, check: Callable[[SearchSpace], None]) -> None:
        for name, spec in self.spaces().items():
            try:
                check(SearchSpace(spec))
            except AssertionError as error:
                raise AssertionError(f"space {name!r}: {error}") from error

    def test_rows_are_designs_and_come_back(self) -> None:
        """Every row encodes a design that can be built, and the design's choices give the row back."""
        self._each(lambda space: check_rows(space, draws=self.draws))

    def test_the_size_is_the_number_of_designs(self) -> None:
        """In a space that can be enumerated, the number of rows is the reported number of designs."""
        self._each(check_size)

    def test_prices_of_blocks_add_up_to_those_of_whole_models(self) -> None:
        """FLOPs, nodes, parameters and memory from the price table equal those of separately lowered designs."""
        for batch in self.batches:
            self._each(partial(check_prices, draws=self.draws, batch=batch))

    def test_a_line_tells_designs_apart(self) -> None:
        """Two designs never have the same summary."""
        self._each(lambda space: check_summaries(space, draws=self.draws))

    def test_a_value_outside_the_space_has_no_row(self) -> None:
        """The error names the choice."""
        self._each(check_outside)


def check_rows(space: SearchSpace, *, draws: int) -> None:
    """Asserts that random rows encode designs that can be built, and that conversion to choices and back is exact."""
    for row in space.sample(draws, np.random.default_rng(1)):
        arch = space.design(row).arch
        assert form_of(arch).builds(arch), summary(space.design(row))
        np.testing.assert_array_equal(space.row(space.choices(row)), row)


def check_size(space: SearchSpace) -> None:
    """Asserts that the space has the reported number of canonical rows, or at most that many if it is too large."""
    if prod(space.cardinalities.tolist()) > MOST_ROWS:
        assert len(np.unique(space.sample(1000, np.random.default_rng(0)), axis=0)) <= space.size()
        return
    rows = np.stack(np.unravel_index(np.arange(prod(space.cardinalities.tolist())), space.cardinalities), axis=1)
    assert len(np.unique(space.canonical(rows), axis=0)) == space.size()


def check_prices(space: SearchSpace, *, draws: int, batch: int) -> None:
    """Asserts that the price table gives exactly the counts of separately lowered designs."""
    workload, pricer = Workload(batch=batch), CountingPricer()
    rows = space.sample(draws, np.random.default_rng(0))
    costs = PriceTable(space, workload, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        graph = lower(design, workload, Phase.PREFILL)
        counted = float(sum(placed.op.work().flops + NODE_S for placed in graph))
        memory = memory_parts(design, workload)
        held = memory.table_bytes + memory.matrix_bytes + memory.kv_bytes + memory.activation_bytes
        assert costs.ttft_s[i] == pytest.approx(counted, rel=1e-12), summary(design)
        assert costs.parameters[i] == design.arch.parameters(), summary(design)
        assert costs.peak_memory_bytes[i] == pytest.approx(held, abs=1), summary(design)


def check_summaries(space: SearchSpace, *, draws: int) -> None:
    """Asserts that different rows have different summaries."""
    rows = np.unique(space.sample(draws, np.random.default_rng(3)), axis=0)
    assert len({summary(space.design(row)) for row in rows}) == len(rows)


def check_outside(space: SearchSpace) -> None:
    """Asserts that a width outside the space raises an error that names it."""
    choices = space.choices(space.sample(1, np.random.default_rng(2))[0])
    with pytest.raises(SpecError, match="d_model"):
        space.row({**choices, "d_model": 1 + max(space.spec.d_model)})
