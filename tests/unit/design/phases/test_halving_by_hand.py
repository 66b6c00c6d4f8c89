"""Successive halving by pencil: who goes on for what is left, what trainings are charged, a finalist's other forms."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_choices_by_hand import halving, item

from chipwise.design.phases.halving import Rung
from chipwise.design.run.budget_spec import Allowance
from chipwise.errors import Infeasible


def promoting(
    ranking: list[Any], *, budget: float = math.inf, keeps: Any = lambda each: True
) -> tuple[list[int], list[int], list[int]]:
    """Who is promoted to the second of three rungs, of 1, 3 and 9, and whom the limits were asked of, and the notes."""
    known = {each.number: each for each in ranking}
    asked: list[int] = []
    noted: list[int] = []

    def judged(each: Any) -> bool:
        asked.append(each.number)
        return bool(keeps(each))

    trials = SimpleNamespace(
        all=lambda: list(known.values()), note=lambda number, *, promoted: noted.append(number * 10 + promoted)
    )
    plan = (Rung(budget=1.0, count=9), Rung(budget=3.0, count=3), Rung(budget=9.0, count=1))
    found = halving(
        _plan=plan, _trials=trials, _left=lambda: budget, _used=0.0, _trained=0.0,
        _allowance=Allowance(unit="cpu", total=100.0, final=9.0, whole=False),
    )  # fmt: skip
    found.ranked = list
    found._keeps_limits = judged
    found._fresh = lambda each: known[each.number]
    found._first_within = lambda items, count: items[-count:]
    return [each.number for each in found.chosen(1)], asked, noted


def promotable(number: int, *, rung: int = 0, promoted: int = 0, **fields: Any) -> Any:
    notes = SimpleNamespace(promoted=promoted)
    reached = {"trained_to": lambda wanted: wanted <= rung, "rungs": (1,) * (rung + 1)}
    return item(number, notes=notes, **(reached | fields))


def test_the_most_promising_that_keep_the_limits_go_on() -> None:
    items = [promotable(number) for number in range(5)]
    assert promoting(items) == ([0, 1, 2], [0, 1, 2], [1, 11, 21])
    assert promoting(items, keeps=lambda each: each.number % 2) == ([1, 3], [0, 1, 2, 3, 4], [11, 31])
    failed = [promotable(0, alive=False), promotable(1), promotable(2, rungs=(), rung=-1), promotable(3)]
    assert promoting(failed, keeps=lambda each: each.alive)[0] == [1, 3]  # 2 has no training yet


def test_as_many_go_on_as_the_budget_holds_beside_the_final_trainings_and_one_at_least() -> None:
    """Two more units each, of what is left beside the six of the last rung's step."""
    items = [promotable(number) for number in range(5)]
    for budget, count in ((12.0, 3), (10.0, 2), (9.9, 1), (8.0, 1), (0.0, 1)):
        assert len(promoting(items, budget=budget)[0]) == count


def test_who_was_promoted_or_trained_further_under_an_earlier_plan_costs_nothing() -> None:
    """Trial 0 was promoted and is not trained again; trial 3 has this training, so it continues without budget."""
    items = [promotable(0, promoted=1), promotable(1), promotable(2), promotable(3, rung=1)]
    assert promoting(items, budget=0.0) == ([0, 3], [3, 3], [31])
    assert promoting(items, budget=8.0) == ([0, 3], [3, 3], [31])  # 0 is the one that this holds
    assert promoting(items, budget=10.0) == ([0, 1, 3], [3, 1, 3], [11, 31])
    slow = [promotable(1), promotable(2), promotable(3, rung=1)]
    assert promoting(slow, budget=0.0, keeps=lambda each: each.number != 3)[0] == [1]  # 3 breaks a limit: one is paid
    gone = [promotable(0, promoted=1, alive=False), promotable(1)]
    assert promoting(gone, budget=0.0, keeps=lambda each: each.alive)[0] == [1]
    assert promoting([promotable(0, promoted=2), promotable(1, promoted=1)])[0] == [0, 1]


def test_where_none_keeps_the_limits_one_comes_closest_and_where_all_failed_it_is_said() -> None:
    items = [promotable(0), promotable(1), promotable(2, alive=False)]
    assert promoting(items, keeps=lambda each: False)[0] == [1]
    with pytest.raises(Infeasible, match="every candidate failed in training"):
        promoting([promotable(0, alive=False)], keeps=lambda each: False)


def test_trainings_are_charged_by_what_they_add_and_what_they_took_in_all() -> None:
    """2 s after 0.5 s before, and one that failed: 1.5 s were trained; the budget lost 4 s."""
    noted: list[Any] = []
    left = iter([10.0, 6.0])
    trials = SimpleNamespace(
        fail=lambda number, reason: noted.append((number, reason)),
        trained=lambda number, result: noted.append((number, result["rung"])),
    )
    begun = promotable(0, rungs=(SimpleNamespace(cpu_s=0.5, tokens=10),))
    fresh, failed, done, gone = (
        promotable(1, rungs=(), rung=-1), promotable(2, rungs=(), rung=-1), promotable(3, rung=1),
        promotable(4, rung=-1, alive=False),
    )  # fmt: skip
    results = {0: {"cpu_s": 2.0, "tokens": 20}, 1: {"cpu_s": 1.0, "tokens": 5}, 2: Infeasible("no")}
    asked: list[int] = []

    def run(jobs: Any) -> Any:
        asked.extend(job.candidate.number for job in jobs)
        return [(job, results[job.candidate.number]) for job in jobs]

    found = halving(
        _trials=trials, _trainer=SimpleNamespace(run=run), _left=lambda: next(left), _used=0.0, _trained=0.0,
        _allowance=Allowance(unit="cpu", total=100.0, final=9.0, whole=True),
        _plan=(Rung(budget=1.0, count=1), Rung(budget=3.0, count=1)),
    )  # fmt: skip
    found.train([begun, fresh, failed, done, gone], 1)
    assert asked == [0, 1, 2]
    assert noted == [(0, 1), (1, 1), (2, "no")]
    assert (found._trained, found._used) == (1.5 + 1.0, 4.0)


def test_other_forms_of_a_finalist_are_trials_once_and_the_first_better_one_that_fits_is_taken() -> None:
    """Of bits 2.0: 1.8 breaks a limit, 1.9 keeps it, 2.0 is no better, one failed; the known form is not added."""
    finalist = item(0, quality=2.0, row=(0,))
    forms = {
        (1,): item(1, quality=1.9, row=(1,), after=lambda rung: True),
        (2,): item(2, quality=1.8, row=(2,), after=lambda rung: True),
        (3,): item(3, quality=1.0, row=(3,), after=lambda rung: True, alive=False),
        (4,): item(4, quality=2.0, row=(4,), after=lambda rung: True),
        (5,): item(5, quality=1.0, row=(5,), after=lambda rung: None),
    }
    held = {0: finalist, 1: forms[1,]}
    added: list[Any] = []

    class Held:
        def all(self) -> list[Any]:
            return list(held.values())

        def __getitem__(self, number: int) -> Any:
            return held[number]

        def add(self, row: Any, *, predicted: Any, format_of: int) -> int:
            form = forms[tuple(row.tolist())]
            added.append((form.number, predicted, format_of))
            held[form.number] = form
            return int(form.number)

    trained: list[Any] = []
    found = halving(_trials=Held(), _predict=lambda rows: f"of {rows.tolist()}")
    found._measurer = SimpleNamespace(within_limits=lambda each: each.number != 2)
    found._faster = lambda items, best, loss: []
    found.train = lambda items, rung: trained.append(([each.number for each in items], rung))
    rows = np.array([[1], [2], [3], [4], [5]])
    assert found._in_best_of(finalist, rows, 2).number == 1
    assert added == [(n, f"of [[{n}]]", 0) for n in (2, 3, 4, 5)]
    assert trained == [([1, 2, 3, 4, 5], 2)]
    found._measurer = SimpleNamespace(within_limits=lambda each: True)
    assert found._in_best_of(finalist, rows, 2).number == 2
    assert len(added) == 4
    assert found._in_best_of(finalist, rows[3:4], 2).number == 0

    def faster(items: Any, best: Any, loss: Any) -> list[Any]:
        assert (best.number, [each.number for each in items]) == (2, [1, 2, 4, 0])
        return [each for number in (4, 1) for each in items if each.number == number and loss(each) <= 2.0]

    found._faster = faster
    found._measurer = SimpleNamespace(within_limits=lambda each: each.number != 4)  # the fastest breaks a limit
    assert found._in_best_of(finalist, rows, 2).number == 1
    found._faster = lambda items, best, loss: []
    found._penalty_factor = lambda each: 1.2 if each.number == 1 else 1.0  # 1.9 counts as 2.28
    assert found._in_best_of(finalist, rows[:1], 2).number == 0


def test_a_faster_form_that_rounds_worse_is_a_finalist_too_if_a_better_quantiser_may_make_it_as_good() -> None:
    """Rounding to nearest costs 1.0 → 1.01 in one form and 1.0 → 1.02 in another; of that, .3 may be left."""

    def form(number: int, loss: float, *, training: str = "t", alive: bool = True, reference: bool = False) -> Any:
        after = SimpleNamespace(loss=1.0, quantised_loss=loss)
        design = SimpleNamespace(arch=SimpleNamespace(as_trained=lambda: SimpleNamespace(digest=training)))
        return item(
            number, design=design, alive=alive, is_reference=reference, after=lambda rung: after if rung == 1 else None
        )

    best, fast = form(0, 1.0), form(1, 1.02)
    held = [best, fast, form(2, 1.0, training="other"), form(3, 1.0, alive=False), form(4, 1.0, reference=True)]
    asked: list[Any] = []

    def faster(items: Any, among: Any, loss: Any) -> list[Any]:
        asked.append([(each.number, loss(each)) for each in items])
        return [each for each in items if loss(each) <= loss(among) * 1.0056]

    found = halving(_trials=SimpleNamespace(all=lambda: held, __getitem__=None), _faster=faster)
    found._fresh = lambda each: each
    found._measurer = SimpleNamespace(within_limits=lambda each: each.number != 0)
    assert found._perhaps_as_good(best, 1) == []  # 1.006 is more than the noise of seeds
    assert asked == [[(0, 1.0), (1, pytest.approx(1.006))]]
    held[1] = form(1, 1.018)
    assert found._perhaps_as_good(best, 1) == [held[1]]
    found._measurer = SimpleNamespace(within_limits=lambda each: False)
    assert found._perhaps_as_good(best, 1) == []
