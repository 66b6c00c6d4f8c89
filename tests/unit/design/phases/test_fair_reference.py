"""The reference design keeps the limits next to the winner, or the next largest that does takes its place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from toy_run import SPEC

from chipwise.design.phases import pipeline
from chipwise.design.phases.pipeline import Search
from chipwise.model.space.search_space import SearchSpace


class Run:
    """A search whose reference designs are numbers: those in ``broken`` break a limit when measured at the end."""

    def __init__(self, monkeypatch, broken: set[int], *, left_s: float = 1e9) -> None:
        self.broken, self.trained, self.noted, self.measured = broken, [], {}, []
        arch = SimpleNamespace(vocab_size=512)
        notes = SimpleNamespace(choices={"vocab_size": 512})
        self.items = {n: SimpleNamespace(number=n, design=SimpleNamespace(arch=arch), notes=notes) for n in range(6)}
        self.search = object.__new__(Search)
        self.search.spec, self.search.space = SPEC, SearchSpace(SPEC.space)
        self.search.trials = self
        monkeypatch.setattr(Search, "_phase", lambda search, name: None)
        self.search.allowance, self.search.budget = SPEC.allowance, SimpleNamespace(left=left_s)
        self.next = iter([self.items[1], self.items[2], None])
        monkeypatch.setattr(pipeline, "largest_within", lambda *args, **options: next(self.next))
        self.contenders = [self.items[4], self.items[5]]

    def __getitem__(self, number: int):
        return self.items[number]

    def note(self, number: int, **notes) -> None:
        self.noted[number] = notes

    def keeps_limits(self, item) -> bool:
        return item.number not in self.broken

    def measure(self, items) -> None:
        self.measured.append([item.number for item in items])

    def best(self, items, reference):
        """Trial 5 is the better one that is slower than the smaller reference designs."""
        return self.items[5] if reference.number == 0 else self.items[4]

    def train_in_full(self, item):
        self.trained.append(item.number)
        return item

    overhead = 1.0

    def decide(self) -> tuple[int, int]:
        ready = SimpleNamespace(target=None, measurer=None)
        winner, reference = self.search._fair_reference(ready, self, self, self.items[5], self.items[0])
        return winner.number, reference.number


def test_one_that_keeps_the_limits_stays(monkeypatch) -> None:
    run = Run(monkeypatch, broken=set())
    assert run.decide() == (5, 0)
    assert run.trained == []


def test_the_next_largest_that_keeps_them_is_trained_as_long_and_measured_beside(monkeypatch) -> None:
    """Design 1 breaks a limit too; 2 keeps them. The winner must be no slower than the one it is compared with."""
    run = Run(monkeypatch, broken={0, 1})
    assert run.decide() == (4, 2)
    assert run.trained == [1, 2]
    assert run.noted == {0: {"within": False}, 1: {"within": False}}
    assert run.measured == [[5, 1], [4, 2]]


@pytest.mark.parametrize("left_s", [0.0, -5.0])
def test_without_budget_the_broken_one_stays_and_the_report_says_so(monkeypatch, left_s) -> None:
    run = Run(monkeypatch, broken={0}, left_s=left_s)
    assert run.decide() == (5, 0)
    assert run.trained == []
