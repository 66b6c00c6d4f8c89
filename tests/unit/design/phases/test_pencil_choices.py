"""Budgets, limits and choices of a search, each by pencil on round numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_halving import FakeTrainer, make
from toy_run import SPEC

from chipwise.design.limits import Objective, parse_constraints
from chipwise.design.phases.choosing import _spread
from chipwise.design.phases.halving import OVERHEAD, Rung, plan_finals, plan_rungs
from chipwise.design.phases.limits import no_slower_than, with_headroom, within
from chipwise.design.phases.measurement_choice import NOVEL, _ends, _tightest, next_to_measure, worth_measuring
from chipwise.design.phases.reference_design import most_parameters
from chipwise.design.phases.screening import excess, mutate, screen
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.study import Trial
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.tasks.references import llama_proportions

NAN = np.nan


def seconds(final: float) -> Allowance:
    """CPU seconds, of which one final training takes ``final``."""
    return Allowance(unit="cpu", total=1e9, final=final, whole=True)


@pytest.mark.parametrize(
    ("training_s", "rungs"),
    [
        (900.0, [(10.0, 70), (30.0, 4), (90.0, 2)]),  # promotions 4·20 + 2·60 = 200 s; the rest 700 s at 10 s each
        (250.0, [(10.0, 5), (30.0, 4), (90.0, 2)]),  # five are the fewest that four can be chosen from
        (249.0, [(30.0, 4), (90.0, 2)]),  # promotions 2·60 = 120 s; 129 s hold four of 30 s
        (209.0, [(10.0, 10), (30.0, 2), (90.0, 1)]),  # two finalists leave two trainings of 30 s, too few: one finalist
        (120.0, [(30.0, 2), (90.0, 1)]),
        (119.0, [(90.0, 1)]),  # no choice is left
        (90.0, [(90.0, 1)]),
    ],
)
def test_the_plan_of_a_final_training_of_ninety_seconds(training_s: float, rungs: list[tuple[float, int]]) -> None:
    assert plan_rungs(seconds(90.0), training_s) == tuple(Rung(budget=s, count=n) for s, n in rungs)


def test_a_reference_design_is_no_larger_than_its_training_fills() -> None:
    """A quarter of a token a parameter: of 600,000 tokens 2.4 M parameters. Of 60 s at 150 G FLOP/s, six FLOPs a token
    and parameter: 9e12 = 6 N · N / 4, so N = 2.45 M. What a GPU does in its seconds is not known beforehand."""
    tokens = Allowance(unit="tokens", total=3e6, final=6e5, whole=False)
    assert most_parameters(tokens) == pytest.approx(2.4e6)
    assert most_parameters(seconds(60.0)) == pytest.approx(2.449e6, rel=1e-3)
    assert most_parameters(Allowance(unit="gpu", total=600.0, final=90.0, whole=False)) == math.inf
    assert most_parameters(seconds(60.0), slower=4.0) == pytest.approx(2.449e6 / 2, rel=1e-3)  # half the parameters


def test_no_rung_is_shorter_than_a_second() -> None:
    """Of 8 s, a ninth would be 0.9 s: two rungs, (81 - 2·16/3) / (8/3) = 26.4 at first."""
    first, last = plan_rungs(seconds(8.0), 81.0)
    assert (first.budget, first.count, last) == (pytest.approx(8 / 3), 26, Rung(budget=8.0, count=2))
    assert [rung.budget for rung in plan_rungs(seconds(9.0), 810.0)] == [1.0, 3.0, 9.0]


def test_no_rung_is_shorter_than_the_share_that_tells_shapes_apart() -> None:
    """Of 60 s, a third. With 500 s five go on, 200 s, after (500 - 200) / 20 = 15; with 499 s there would be 14 for
    five, fewer than three for each, so four go on. A metric that needs half a training leaves full ones alone."""
    first, last = plan_rungs(seconds(60.0), 500.0, least_share=1 / 3)
    assert (first, last) == (Rung(budget=20.0, count=15), Rung(budget=60.0, count=5))
    first, last = plan_rungs(seconds(60.0), 499.0, least_share=1 / 3)
    assert (first, last) == (Rung(budget=20.0, count=16), Rung(budget=60.0, count=4))
    first, last = plan_rungs(seconds(60.0), 2_000.0, least_share=1 / 3)
    assert (first, last) == (Rung(budget=20.0, count=90), Rung(budget=60.0, count=5))
    assert plan_rungs(seconds(60.0), 500.0, least_share=0.5) == (Rung(budget=60.0, count=8),)


def test_trainings_too_short_to_show_anything_are_full_ones() -> None:
    """A third of 60,000 tokens is below the 50,000 that show something: 440,000 hold seven full trainings."""
    tokens = Allowance(unit="tokens", total=500e3, final=60e3, whole=False)
    assert plan_rungs(tokens, 440e3) == (Rung(budget=60e3, count=7),)


def test_full_trainings_alone() -> None:
    assert plan_finals(seconds(30.0), 100.0) == (Rung(budget=30.0, count=3),)
    with pytest.raises(SpecError, match=r"29 s of CPU time are left, less than one final training of 30 s"):
        plan_finals(seconds(30.0), 29.0)


def test_what_is_affordable_counts_what_trainings_took_in_all(tmp_path) -> None:
    """Rungs of 1, 3 and 9 s with 9, 4 and 2 candidates; at first a second of training takes 1.3."""
    _, halving = make(tmp_path / "s", FakeTrainer())
    assert [halving._promotions(rung) for rung in (1, 2, 3)] == [4 * 2 + 2 * 6, 2 * 6, 0]
    assert halving._affordable(1.0, 1e9) == 10**9  # no budget
    assert halving.overhead == OVERHEAD == 1.3
    halving._left = lambda: 26.0
    assert halving._affordable(1.0, 5.0) == 15  # 26 / 1.3 - 5
    assert halving._affordable(4.0, 5.0) == 3
    halving._used, halving._trained = 36.3, 11.0
    assert halving.overhead == pytest.approx((36.3 + 1.3 * 9) / (11 + 9))  # 2.4


def test_used_time_is_that_of_the_trainings_and_a_continued_one_pays_the_difference(tmp_path) -> None:
    trials, halving = make(tmp_path / "s", FakeTrainer())
    left = iter(np.arange(1e5, 0.0, -10.0))
    halving._left = lambda: float(next(left))
    halving.explore([])
    assert halving._trained == pytest.approx(9 * 1.0)
    used_s = halving._used
    assert used_s > 0
    halving.train([trials[0]], 1)
    assert halving._trained == pytest.approx(9 + 2.0)  # from 1 s to 3 s
    assert halving._used == pytest.approx(used_s + 10.0)
    halving.train([trials[0]], 1)  # nothing to do
    assert halving._used == pytest.approx(used_s + 10.0)


def test_tails_leave_headroom_and_medians_do_not() -> None:
    limits = parse_constraints({"tpot_p99": "<= 10 ms", "ttft_p50": "<= 1 s"})
    assert within(limits, {"tpot_p99": 8.4e-3, "ttft_p50": 1.0}, headroom=0.85)
    assert not within(limits, {"tpot_p99": 8.6e-3, "ttft_p50": 1.0}, headroom=0.85)
    assert within(limits, {"tpot_p99": 10e-3, "ttft_p50": 1.0})
    assert not within(limits, {"ttft_p50": 1.001})
    assert within(parse_constraints({"tpot_p99": {"limit": "<= 1 ms", "penalty": 0.1}}), {"tpot_p99": 1.0})


def test_upper_limits_on_tails_and_memory_leave_headroom_for_predictions() -> None:
    """85 % of limits on P99 times and 99.5 % of one on memory; medians, lower limits and soft limits stay."""
    limits = parse_constraints(
        {"tpot_p99": "<= 10 ms", "ttft_p50": "<= 1 s", "peak_memory": "<= 100 MB", "throughput": ">= 5 tokens/s"}
        | {"ttft_p99": {"limit": "<= 1 s", "penalty": 0.1}}
    )
    lowered = {limit.metric: limit.limit for limit in with_headroom(limits)}
    assert lowered == pytest.approx(
        {"tpot_p99": 8.5e-3, "ttft_p50": 1.0, "peak_memory": 99.5e6, "throughput": 5.0, "ttft_p99": 1.0}
    )


def test_the_slowest_reference_design_sets_the_pace() -> None:
    times = ((2e-3, True), (3e-3, True), (9e-3, False))
    references = [SimpleNamespace(measured=known or None, costs={"tpot_p50": time_s}) for time_s, known in times]
    (cap,) = no_slower_than(references, ())
    assert (cap.metric, cap.op, cap.limit, cap.hard) == ("tpot_p50", "<=", 3e-3, True)
    assert "3 ms" in cap.text
    assert no_slower_than(references[2:], ()) == ()
    assert no_slower_than(references, (), measured=False)[0].limit == 9e-3  # where nothing is measured
    soft = parse_constraints({"tpot_p99": {"limit": "<= 1 ms", "penalty": 0.1}})
    assert no_slower_than(references, soft) == ()
    assert no_slower_than(references, parse_constraints({"tpot_p99": "<= 1 ms"})) == (cap,)


def test_a_measurement_is_worth_it_where_an_interval_straddles_a_hard_limit_or_little_is_known() -> None:
    limits = parse_constraints({"tpot_p50": "<= 10 ms", "tpot_p99": {"limit": "<= 10 ms", "penalty": 0.1}})

    def why(low: float, high: float, novelty: float = 0.0, metric: str = "tpot_p50") -> str | None:
        promise = {metric: [(low + high) / 2, low, high]}
        return worth_measuring("hybrid", promise, limits, novelty=novelty, headroom=0.5)

    assert why(9e-3, 11e-3) == "its interval straddles tpot_p50 <= 10 ms"
    assert why(6e-3, 9e-3) is None  # headroom is for tails alone
    assert why(9e-3, 11e-3, metric="tpot_p99") is None  # a soft limit decides nothing
    assert why(9e-3, 11e-3, metric="ttft_p50") is None
    assert why(1e-3, 2e-3, novelty=NOVEL) is None
    assert why(1e-3, 2e-3, novelty=NOVEL + 0.01) == "nothing like it was measured"


def candidate(**notes: object) -> Candidate:
    rung = {"rung": 0, "cpu_s": 1.0, "tokens": 1, "loss": 1.0, "quantised_loss": 2.0}
    plain = {"role": "candidate", "choices": {}, "predicted": {}, "rungs": [rung], **notes}
    return Candidate(Trial(number=0, state="running", notes=plain), design=None)  # type: ignore[arg-type]


def test_the_ends_of_what_a_candidate_may_turn_out_to_be() -> None:
    """A soft limit of 1 ms at 10 %: at 3 ms, 200 % too much, 2.0 bits count as 2.4."""
    bits, time_s = (Objective(metric=name, direction="minimize") for name in ("bits_per_byte", "tpot_p50"))
    soft = parse_constraints({"tpot_p50": {"limit": "<= 1 ms", "penalty": "10 %"}})
    promise = {"tpot_p50": [1e-3, 0.5e-3, 3e-3]}
    assert _ends(candidate(), bits, promise, soft) == pytest.approx((2.0, 2.4))
    assert _ends(candidate(), time_s, promise, soft) == (0.5e-3, 3e-3)
    done = candidate(measured={"tpot_p50": 2e-3})
    assert _ends(done, bits, promise, soft) == pytest.approx((2.2, 2.2))
    assert _ends(done, time_s, promise, soft) == (2e-3, 2e-3)
    most = Objective(metric="tpot_p50", direction="maximize")
    assert _ends(candidate(), most, promise, ()) == (-0.5e-3, -3e-3)


def test_the_tightest_hard_limit_of_a_goal() -> None:
    less, more = (Objective(metric="parameters", direction=d) for d in ("minimize", "maximize"))
    limits = parse_constraints({"parameters": ["<= 9k", "<= 7k", ">= 2k", ">= 3k"], "peak_memory": "<= 1 kB"})
    assert (_tightest(less, limits), _tightest(more, limits)) == (7e3, -3e3)
    assert _tightest(less, ()) == math.inf
    assert _tightest(less, parse_constraints({"parameters": {"limit": "<= 5k", "penalty": 0.1}})) == math.inf


def test_of_candidates_that_may_add_as_much_the_one_with_the_lowest_high_ends_is_measured() -> None:
    low, reference, free = np.array([[4.0, 4.0]] * 3), np.array([10.0, 10.0]), np.array([np.inf, np.inf])
    high = np.array([[9.0, 9.0], [6.0, 5.0], [7.0, 5.0]])
    assert next_to_measure(low, high, np.full((3, 2), NAN), free, reference) == 1
    assert next_to_measure(low[:0], high[:0], np.full((0, 2), NAN), free, reference) is None


def test_a_measurement_must_be_able_to_add_its_share() -> None:
    """The front (5, 5) holds 25 of the corner (10, 10); (5, 4.99) adds 0.05, two thousandths."""
    low, free = np.array([[5.0, 5.0], [5.0, 4.99]]), np.array([np.inf, np.inf])
    known = np.array([[5.0, 5.0], [NAN, NAN]])
    corner = np.array([10.0, 10.0])
    assert next_to_measure(low, low, known, free, corner, tolerance=0.0019) == 1
    assert next_to_measure(low, low, known, free, corner, tolerance=0.0021) is None


def test_points_are_spread_from_the_middle_to_the_far_ends() -> None:
    """0, 1, 2, 3 and 10 on a line: the mean 3.2 is nearest to 3; then 10 (7 away), 0 (3 away), then 1 before 2."""
    line = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [10.0, 5.0]])
    assert _spread(line, line[:0], 4).tolist() == [3, 4, 0, 1]
    assert _spread(line, np.array([[10.0, 5.0]]), 2).tolist() == [0, 3]  # what is held is kept away from


def test_the_worst_excess_over_hard_limits() -> None:
    """1 ms of 2 ms is -0.5, 3 ms 0.5; 50 of at least 100 parameters 0.5; a soft limit does not count."""
    limits = parse_constraints(
        {
            "tpot_p50": "<= 2 ms",
            "parameters": ">= 100",
            "peak_memory": {"limit": "<= 1 B", "penalty": 1.0},
            "ttft_p50": "<= 1 ms",
        }
    )
    known = {
        "tpot_p50": np.array([1e-3, 3e-3, 2e-3, 1e-6]),
        "parameters": np.array([400.0, 100.0, 50.0, 1e9]),
        "peak_memory": np.full(4, 9.0),
    }
    assert excess(limits, known).tolist() == pytest.approx([-0.5, 0.5, 0.5, -0.9995], abs=1e-12)


def test_children_differ_in_about_as_many_genes_as_asked() -> None:
    cardinalities = np.full(30, 1000)
    space = SimpleNamespace(cardinalities=cardinalities, canonical=lambda rows: rows)
    rows = np.full((2000, 30), -1)
    changed = (mutate(space, rows, np.random.default_rng(0)) != rows).sum(axis=1)
    assert changed.mean() == pytest.approx(1.5, abs=0.1)
    twice = (mutate(space, rows, np.random.default_rng(0), genes=3.0) != rows).sum(axis=1)
    assert twice.mean() == pytest.approx(3.0, abs=0.15)
    drawn = mutate(space, rows, np.random.default_rng(0), genes=30.0)
    assert drawn.min() >= 0
    assert 490 < drawn.mean() < 510


def test_candidates_within_the_limits_are_kept() -> None:
    space = SearchSpace(SPEC.space)

    def metrics(rows):
        size = space.values(rows, "d_model") * space.values(rows, "depth") * 1.0
        return {"tpot_p50": size * 1e-6, "tpot_p99": size * 1e-6, "peak_memory": size * 10, "parameters": size}

    found = screen(space, metrics, parse_constraints({"tpot_p99": "<= 100 us"}), seed=0, draws=500, wanted=1)
    assert (found.metrics["parameters"] <= 100).all()
    assert len(found.rows) == pytest.approx(found.feasible_share * found.priced)
    assert 0 < found.feasible_share < 1
    assert found.priced <= space.size()


def test_llama_proportions_around_a_small_space() -> None:
    """As wide and deep again by half as 64 and 2: 64 and 96 wide, up to 3 deep, a width of 24 to 128 times the depth.

    64 wide: heads of 32 alone, for two; 1 or 2 deep. 96 wide: three heads of 32; 1, 2 or 3 deep.
    """
    spec = replace(SPEC.space, d_model=(32, 64), depth=(1, 2), vocab_size=(512, 1024), weights=("fp32", "int8"))
    found = list(llama_proportions(spec))
    assert {(c["weights"], c["vocab_size"]) for c in found} == {(w, v) for w in ("fp32", "int8") for v in (512, 1024)}
    one = [c for c in found if (c["weights"], c["vocab_size"]) == ("fp32", 512)]
    shapes = sorted((c["d_model"], c["depth"], c["layers"][0]["heads"], c["layers"][0]["kv_heads"]) for c in one)
    assert shapes == sorted(
        [(64, depth, 2, kv) for depth in (1, 2) for kv in (1, 2)]
        + [(96, depth, 3, kv) for depth in (1, 2, 3) for kv in (1, 3)]
    )
    assert {(c["d_model"], c["layers"][0]["ffn_width"]) for c in one} == {(64, 160), (96, 256)}  # 8/3, in 32s
    assert all(len(c["layers"]) == c["depth"] and c["tie_embeddings"] and c["head_size"] == 32 for c in one)
    wide = list(llama_proportions(replace(spec, d_model=(256,), depth=(1,)), aspect=(128, 256)))
    assert {c["d_model"] for c in wide} == set(range(128, 257, 32))
    assert {c["layers"][0]["kv_heads"] for c in wide if c["d_model"] == 256 and c["head_size"] == 32} == {8, 4, 2}
    assert {c["layers"][0]["heads"] for c in wide if c["head_size"] == 64} == {2, 3, 4}


@pytest.mark.parametrize(("workers", "asked"), [(1, [2, 2, 2, 2, 2, 2]), (2, [9, 3]), (3, [12])])
def test_the_first_batch_fills_the_other_workers_while_the_reference_trains_in_full(tmp_path, workers, asked) -> None:
    """Nine trainings of 1 s take as long as one of 9 s; later batches are two a worker, up to twelve in all."""
    _, halving = make(tmp_path / "s", FakeTrainer())
    halving._plan = (Rung(budget=1.0, count=12), *halving._plan[1:])
    halving._workers, counts, propose = workers, [], halving._propose
    halving._propose = lambda count, *rest: counts.append(count) or propose(count, *rest)
    halving.explore([])
    assert counts == asked


def test_the_promoted_are_noted(tmp_path) -> None:
    _, halving = make(tmp_path / "s", FakeTrainer())
    halving.explore([])
    promoted = halving.chosen(1)
    assert [item.notes.promoted for item in promoted] == [1] * 4
