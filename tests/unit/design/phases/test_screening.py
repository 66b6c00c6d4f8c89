from dataclasses import replace

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.design.limits import parse_constraints
from chipwise.design.phases.screening import loosened, screen
from chipwise.errors import Infeasible, OutOfReach
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec

SPACE = SearchSpace(
    build(
        SpaceSpec,
        {
            "d_model": list(range(32, 512, 32)),
            "depth": [1, 2, 3, 4, 5, 6],
            "vocab_size": [512],
            "layer": {"heads": [1, 2], "kv_heads": [1], "ffn_width": [64, 128, 256, 512]},
        },
    )
)


def metrics(rows):
    """A toy cost: one microsecond a parameter of width × depth, ten bytes each."""
    size = SPACE.values(rows, "d_model") * SPACE.values(rows, "depth") * 1.0
    return {"tpot_p50": size * 1e-6, "tpot_p99": size * 1e-6, "peak_memory": size * 10, "parameters": size}


def test_what_is_kept_is_feasible_and_distinct() -> None:
    found = screen(SPACE, metrics, parse_constraints({"tpot_p99": "<= 100 us"}), seed=0, draws=5_000)
    assert (found.metrics["tpot_p99"] <= 100e-6).all()
    assert len(np.unique(found.rows, axis=0)) == len(found.rows) > 0
    assert found.priced >= 1_000


def test_a_sliver_that_drawing_misses_is_bred() -> None:
    # only d_model 32 with one layer: one candidate in ninety, and of few drawn perhaps none
    found = screen(SPACE, metrics, parse_constraints({"tpot_p99": "<= 32 us"}), seed=0, draws=20)
    assert (SPACE.values(found.rows, "d_model") == 32).all()


def test_a_limit_out_of_reach_is_named_with_the_closest_value() -> None:
    with pytest.raises(Infeasible, match=r"tpot_p99 <= 1 us: the closest candidate is predicted to have 32 µs"):
        screen(SPACE, metrics, parse_constraints({"tpot_p99": "<= 1 us"}), seed=0, draws=2_000)


def test_the_nearest_limit_that_can_be_met_is_the_users_with_the_same_confidence() -> None:
    """32 µs that are to hold with a margin of 2 meet a limit of 64 µs; a candidate within that limit exists."""
    (limit,) = parse_constraints({"tpot_p99": "<= 1 us"})
    hard = replace(limit, limit=0.5e-6, text="<= 1 us with 90 % confidence", margin=2.0)
    with pytest.raises(Infeasible, match=r"off by a factor of 64; the nearest limit that it meets: <= 64\.3 µs"):
        screen(SPACE, metrics, (hard,), seed=0, draws=2_000)
    assert hard.nearest(32e-6) == "<= 64.3 µs"
    (least,) = parse_constraints({"parameters": ">= 1e9"})
    assert least.nearest(1e6) == ">= 995 k"


def test_limits_loosened_by_what_the_closest_exceeds_them_are_kept_by_it() -> None:
    """32 µs are 31 times past 1 µs; a lower limit of 1e6 parameters is loosened downwards."""
    limits = parse_constraints({"tpot_p99": "<= 1 us"})
    with pytest.raises(OutOfReach) as caught:
        screen(SPACE, metrics, limits, seed=0, draws=2_000)
    assert caught.value.beyond == pytest.approx(31.0)
    found = screen(SPACE, metrics, loosened(limits, caught.value.beyond), seed=0, draws=2_000)
    assert (SPACE.values(found.rows, "d_model") == 32).all()
    (lower,) = loosened(parse_constraints({"parameters": ">= 1M"}), 0.5)
    assert lower.limit == pytest.approx(0.5e6, rel=0.01)


def test_limits_that_pull_against_each_other_are_all_named() -> None:
    limits = parse_constraints({"tpot_p99": "<= 64 us", "parameters": ">= 1k"})
    with pytest.raises(Infeasible, match="alone, but no candidate meets all"):
        screen(SPACE, metrics, limits, seed=0, draws=2_000)


def test_speed_counts_each_candidate_once(monkeypatch) -> None:
    """5,000 draws from 1,440 designs hold each many times; in two seconds at most 720 a second were priced."""
    clock = iter([5.0, 7.0])
    monkeypatch.setattr("chipwise.design.phases.screening.time.perf_counter", lambda: next(clock))
    priced = []

    def counted(rows):
        priced.append(len(np.unique(rows, axis=0)))
        return metrics(rows)

    found = screen(SPACE, counted, parse_constraints({"tpot_p99": "<= 1 s"}), seed=0, draws=5_000)
    assert found.priced == priced[0] < 5_000
    assert found.priced_per_s == priced[0] / 2.0


@pytest.mark.parametrize(("held", "batches"), [(2_000, 1), (1_999, 2)])
def test_two_thousand_within_the_limits_are_enough(held: int, batches: int) -> None:
    """Of some 3,000 that are drawn so many keep the limit; breeding begins where one is lacking, and finds it."""
    space = SearchSpace(
        build(
            SpaceSpec,
            {
                "d_model": list(range(32, 2048, 32)),
                "depth": [1, 2, 3, 4, 5, 6],
                "vocab_size": [512],
                "layer": {"heads": [1, 2], "kv_heads": [1], "ffn_width": [64, 128, 256, 512]},
            },
        )
    )
    priced: list[int] = []

    def ranked(rows):
        first = np.arange(len(rows)) if not priced else np.zeros(len(rows))
        priced.append(len(rows))
        return {"tpot_p99": np.where(first < held, 50e-6, 100e-6)}

    found = screen(space, ranked, parse_constraints({"tpot_p99": "<= 70 us"}), seed=0, draws=5_000)
    assert len(priced) == batches
    assert priced[0] > 2_001
    assert len(found.rows) == held + sum(priced[1:])
    assert found.priced == sum(priced)
    assert found.feasible_share == held / priced[0]
