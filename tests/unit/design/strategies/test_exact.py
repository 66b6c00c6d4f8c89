"""The exact choice against trying everything."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.design.strategies.exact import Option, choose
from chipwise.errors import Infeasible, InputError

options = st.lists(
    st.builds(
        lambda loss, a, b: Option(loss=loss, costs={"a": a, "b": b}),
        st.integers(0, 50).map(float),
        st.integers(0, 20).map(float),
        st.integers(0, 20).map(float),
    ),
    min_size=1,
    max_size=4,
)


def total(parts: list[list[Option]], picked: tuple[int, ...] | list[int], name: str | None) -> float:
    chosen = [part[i] for part, i in zip(parts, picked, strict=True)]
    return sum(option.loss if name is None else option.costs[name] for option in chosen)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(parts=st.lists(options, min_size=1, max_size=4), a=st.integers(1, 60), b=st.integers(1, 60))
def test_it_finds_what_trying_everything_finds(parts: list[list[Option]], a: int, b: int) -> None:
    limits = {"a": float(a), "b": float(b)}
    every = itertools.product(*(range(len(part)) for part in parts))
    within = [p for p in every if all(total(parts, p, name) <= limit for name, limit in limits.items())]
    if not within:
        with pytest.raises(Infeasible):
            choose(parts, limits)
        return
    picked = choose(parts, limits)
    assert all(total(parts, picked, name) <= limit + 1e-9 for name, limit in limits.items())
    assert total(parts, picked, None) == pytest.approx(min(total(parts, p, None) for p in within))


def test_by_hand() -> None:
    """5 units of time: halving both (2 + 2, loss 3) beats keeping one and dropping the other (4 + 0, loss 5)."""
    sizes = [(0.0, 4.0), (1.5, 2.0), (5.0, 0.0)]
    part = [Option(loss=loss, costs={"time": time}) for loss, time in sizes]
    assert choose([part, part], {"time": 5.0}) == [1, 1]
    assert choose([part, part], {"time": 8.0}) == [0, 0]
    assert choose([part, part], {}) == [0, 0]


def test_microseconds_and_megabytes_side_by_side() -> None:
    part = [Option(loss=0.0, costs={"s": 4e-6, "bytes": 4e7}), Option(loss=1.0, costs={"s": 1e-6, "bytes": 9e7})]
    assert choose([part] * 3, {"s": 9.5e-6, "bytes": 1.8e8}).count(1) == 1
    with pytest.raises(Infeasible, match="no choice meets all limits together"):
        choose([part] * 3, {"s": 5e-6, "bytes": 1.5e8})


def test_errors_name_what_is_missing() -> None:
    part = [Option(loss=0.0, costs={"s": 2.0})]
    with pytest.raises(Infeasible, match="s: at least 4 is needed, but the limit is 3"):
        choose([part, part], {"s": 3.0})
    with pytest.raises(InputError, match="lacks the cost bytes, which has a limit"):
        choose([part], {"bytes": 3.0})
    with pytest.raises(InputError, match="part 1 has no option"):
        choose([part, []], {"s": 3.0})
    with pytest.raises(InputError, match="finite"):
        Option(loss=math.nan, costs={})
