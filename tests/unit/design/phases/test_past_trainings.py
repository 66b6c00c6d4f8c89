"""A search that begins with trainings of earlier runs: they move its law and its first choice."""

from __future__ import annotations

import numpy as np
import pytest
from toy_run import SPACE, make_chooser

from chipwise.design.phases.choosing import Chooser

FINAL_TOKENS = 1e6


def with_past(past=()) -> Chooser:
    return make_chooser(final=FINAL_TOKENS, in_tokens=True, past=past)


def known(count: int, slope: float, factor: float = 1.0) -> list[tuple[tuple[int, ...], int, float]]:
    """Trainings after ``FINAL_TOKENS`` whose loss is the law's times ``factor`` times ``exp(slope * depth)``."""
    new = with_past()
    rows = new.pool[:: max(1, len(new.pool) // count)][:count]
    losses = factor * new.law(rows) * np.exp(slope * SPACE.values(rows, "depth").astype(float))
    return [(tuple(row), int(FINAL_TOKENS), float(loss)) for row, loss in zip(rows.tolist(), losses, strict=True)]


def test_the_law_follows_earlier_losses() -> None:
    """Twelve trainings that lost 1.3 times as much as the law said: what it says now lies between, nearer to them."""
    new, rows = with_past(), with_past().pool[:50]
    ratio = with_past(known(12, 0.0, factor=1.3)).law(rows) / new.law(rows)
    assert 1.1 < np.median(ratio) < 1.35


@pytest.mark.parametrize("slope", [-0.3, 0.3])
def test_the_first_choice_follows_earlier_trainings(slope) -> None:
    """Where depth halves or doubles losses over the space's depths, the first choice is deep or shallow."""
    chooser = with_past(known(24, slope))
    first = chooser.next(1, [], [])
    depths = SPACE.values(chooser.pool, "depth").astype(float)
    wanted = depths.max() if slope < 0 else depths.min()
    assert SPACE.values(first, "depth").tolist() == [wanted]


def test_earlier_trainings_are_no_trials_of_the_run() -> None:
    """The best design of an earlier run may be chosen again: this run has no weights of it."""
    past = known(24, -0.3)
    best = min(past, key=lambda one: one[2])[0]
    chooser = with_past(past)
    assert best in {tuple(row) for row in chooser.next(len(chooser.pool), [], []).tolist()}
