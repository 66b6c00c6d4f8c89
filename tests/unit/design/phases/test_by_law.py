"""A search by law: rows are read as designs are, the best of a space is found, and limits hold."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from chipwise.design.limits import Constraint, Objective
from chipwise.design.phases import by_law
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


@pytest.mark.parametrize(
    ("draws", "vocabularies", "bred"), [(100, 1, by_law.FEWEST_CHILDREN), (10 * by_law.FEWEST_CHILDREN + 19, 2, None)]
)
def test_breeding_ends_where_it_no_longer_helps_and_the_best_is_polished(
    monkeypatch, draws: int, vocabularies: int, bred: int | None
) -> None:
    """A loss is the row's number, a cost its negative: rounds reach 80, 70, then no less; neighbours 69 and 68."""
    loss = LOSS
    rows = [np.array([[number]]) for number in (80, 70, *[75] * 99)]
    counts: list[int] = []

    def both(rows):
        return {loss: 1.0 * rows[:, 0], "tpot_p50": -1.0 * rows[:, 0]}

    def children(space, parents, count, rng):
        counts.append(count)
        return rows[len(counts) - 1]

    def screened(space, metrics, limits, *, seed, draws):
        begun = np.array([[95], [90]])
        return SimpleNamespace(rows=begun, metrics=both(begun), priced=1000)

    near = {70: [70, 69], 69: [68, 70], 68: [68, 71]}
    monkeypatch.setattr(by_law, "with_loss", lambda *args: both)
    monkeypatch.setattr(by_law, "screen", screened)
    monkeypatch.setattr(by_law, "_children", children)
    monkeypatch.setattr(by_law, "_neighbours", lambda space, row: np.array([[n] for n in near[int(row[0])]]))
    monkeypatch.setattr(by_law, "RowShapes", lambda space: lambda rows: rows)
    law = SimpleNamespace(
        expect=lambda shapes, tokens: (None, shapes[:, 0] - 1.0, shapes[:, 0] + 1.0),
        notes=lambda shapes, tokens: [f"of {shapes.tolist()}"],
    )
    space = SimpleNamespace(spec=SimpleNamespace(vocab_size=[1] * vocabularies))
    found = search_by_law(space, None, law, tokens=1e9, draws=draws, seed=0)  # type: ignore[arg-type]
    assert counts == [bred or draws // 10] * (2 + by_law.STALE_ROUNDS)
    assert found.priced == 1000 + len(counts) + 3 * 2
    assert found.metrics[loss].tolist() == sorted(found.metrics[loss].tolist())
    assert found.rows[0, 0] == 68
    assert (found.low - found.rows[:, 0]).tolist() == [-1.0] * len(found.rows)
    assert found.loss().high == 69.0
    assert found.notes[0] == "of [[68]]"
    assert len(found.notes) == vocabularies
