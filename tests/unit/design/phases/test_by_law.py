"""A search by law: rows are read as designs are, the best of a space is found, and limits hold."""

import itertools

import numpy as np
import pytest

from chipwise.design.limits import Constraint, Objective
from chipwise.design.phases.by_law import LOSS, RowShapes, search_by_law, with_loss
from chipwise.design.strategies.pareto import non_dominated
from chipwise.errors import Infeasible
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec
from chipwise.training.laws.laws import shipped
from chipwise.training.laws.shapes import Shapes


def space(*, layers="each", **changes) -> SearchSpace:
    layer = {"heads": (4, 8), "kv_heads": (2, 4), "ffn": ("swiglu", "gelu", "swiglu-8x2"), "ffn_width": (512, 1024)}
    own = {name: changes.pop(name) for name in (*layer, "weights_of_layers") if name in changes}
    if "weights_of_layers" in own:
        own["weights"] = own.pop("weights_of_layers")
    fields = {"d_model": (256, 512), "depth": (3, 6), "vocab_size": (1000,), "head_size": (32, 64)} | changes
    return SearchSpace(SpaceSpec(**fields, layer=LayerSpace(**(layer | own)), layers=layers))


SPACES = {
    "each": space(),
    "thirds": space(layers={"attention": "thirds", "ffn": "alike", "ffn_width": "each"}),
    "shared": space(sharing=("none", "pairs"), conv=("none", "both"), norm="layernorm"),
    "formats": space(weights=("bf16", "int4"), weights_of_layers=("bf16", "int8", "int4")),
}


@pytest.mark.parametrize("name", SPACES)
def test_rows_are_read_as_their_designs_are(name) -> None:
    one = SPACES[name]
    rows = one.sample(40, np.random.default_rng(0))
    expected = Shapes.of(*(one.design(row) for row in rows)).columns()
    assert RowShapes(one)(rows).columns() == pytest.approx(expected, rel=1e-12)


def costs(one: SearchSpace):
    shapes = RowShapes(one)

    def metrics(rows):
        read = shapes(rows)
        return {"tpot_p50": 1e-12 * read.least + 1e-5 * read.depth, "parameters": np.asarray(read.most)}

    return metrics


def limit(metric: str, value: float) -> Constraint:
    return Constraint(metric=metric, op="<=", limit=value, text=f"<= {value}")


def test_the_best_of_a_small_space_is_that_of_trying_all() -> None:
    one = space(layers="thirds", ffn=("swiglu",))
    rows = np.array(list(itertools.product(*(range(count) for count in one.cardinalities))))
    rows = np.unique(one.canonical(rows), axis=0)
    known = with_loss(one, costs(one), shipped(), 1e11)(rows)
    cap = float(np.quantile(known["tpot_p50"], 0.4))
    allowed = known["tpot_p50"] <= cap
    found = search_by_law(
        one, costs(one), shipped(), tokens=1e11, constraints=[limit("tpot_p50", cap)],
        objectives=[Objective(metric="tpot_p50", direction="minimize")], seed=0, draws=300,
    )  # fmt: skip
    assert found.metrics[LOSS][0] == pytest.approx(known[LOSS][allowed].min(), rel=1e-12)
    assert (found.metrics["tpot_p50"] <= cap).all()
    best = known[LOSS][allowed]
    front = non_dominated(np.column_stack([best, known["tpot_p50"][allowed]])).sum()
    mine = non_dominated(np.column_stack([found.metrics[LOSS], found.metrics["tpot_p50"]])).sum()
    assert mine >= 0.9 * front


def test_a_space_of_10_to_the_15_is_searched_to_one_that_no_single_change_improves() -> None:
    one = space(layers="each", depth=(8, 12, 16, 20), d_model=tuple(range(256, 1537, 128)), ffn=("swiglu",),
                ffn_width=tuple(range(512, 4097, 512)))  # fmt: skip
    assert one.size() > 10**15
    cap = 4e-4
    found = search_by_law(
        one, costs(one), shipped(), tokens=1e11, constraints=[limit("tpot_p50", cap)], seed=1, draws=5_000
    )
    again = search_by_law(
        one, costs(one), shipped(), tokens=1e11, constraints=[limit("tpot_p50", cap)], seed=1, draws=5_000
    )
    assert again.rows.tolist() == found.rows.tolist()
    assert found.low[0] < found.metrics[LOSS][0] < found.high[0]
    near = [found.rows[0]]
    for gene, count in enumerate(one.cardinalities):
        for value in range(count):
            near.append(found.rows[0].copy())
            near[-1][gene] = value
    near = one.canonical(np.array(near))
    known = with_loss(one, costs(one), shipped(), 1e11)(near)
    assert known[LOSS][known["tpot_p50"] <= cap].min() >= found.metrics[LOSS][0] - 1e-6
    loose = np.random.default_rng(0)
    drawn = with_loss(one, costs(one), shipped(), 1e11)(one.sample(20_000, loose))
    assert found.metrics[LOSS][0] < drawn[LOSS][drawn["tpot_p50"] <= cap].min()


def test_the_loss_of_what_is_found_is_that_of_its_design() -> None:
    one = SPACES["formats"]
    found = search_by_law(one, costs(one), shipped(), tokens=1e11, seed=0, draws=500)
    assert found.loss().value == pytest.approx(shipped().loss(found.design(), 1e11).value)
    assert found.difference(found.design()).value == 0
    other = one.design(one.sample(1, np.random.default_rng(5))[0])
    change = found.difference(other)
    assert change.low < change.value < 0
    assert change.value == pytest.approx(found.loss().value - shipped().loss(other, 1e11).value)


def test_limits_that_nothing_meets_are_an_error_that_names_them() -> None:
    with pytest.raises(Infeasible, match="tpot_p50"):
        search_by_law(
            SPACES["each"], costs(SPACES["each"]), shipped(), tokens=1e11,
            constraints=[limit("tpot_p50", 1e-9)], seed=0, draws=200,
        )  # fmt: skip


def test_experts_are_described_and_cannot_be_exported() -> None:
    one = space(ffn=("swiglu-8x2",), layers="alike")
    design = one.design(one.sample(1, np.random.default_rng(0))[0])
    block = design.arch.layers[0].ffn
    assert (block.experts, block.active) == (8, 2)
    from chipwise.model.space.designs import summary

    assert "8x2:swiglu" in summary(design)
