"""Times of GGUF files in turns: what is loaded, and how many prompts are timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from chipwise.deploy.runtimes import llama_timing
from chipwise.deploy.runtimes.llama_timing import ROUNDS, least_times


class Clock:
    """A clock whose second prompt in a round would be known already, as llama.cpp's is."""

    made: ClassVar[list[str]] = []

    def __init__(self, file: str, cache: str, *sizes: int) -> None:
        self.made.append(Path(file).name)
        self.known: set[int] = set()
        self.slow = 5.0 if Path(file).stat().st_size > 1 else 0.5

    def step_s(self) -> float:
        return 0.25

    def prefill_s(self, number: int) -> float:
        seconds = 0.001 if number in self.known else self.slow
        self.known.add(number)
        return seconds


def rounds_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, size: int, available: int) -> list[list[float]]:
    """The rounds of two files, of which one is listed twice."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"0" * size)
    Clock.made.clear()
    monkeypatch.setattr(llama_timing, "_ServerClock", Clock)
    monkeypatch.setattr(llama_timing, "_SessionClock", Clock)
    monkeypatch.setattr(llama_timing.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    job: dict[str, Any] = {"files": [str(tmp_path / name) for name in "abb"], "caches": ["f16"] * 3}
    told: list[list[float]] = []
    llama_timing.answer(
        {**job, "depth": 64, "steps": 32, "positions": 512, "rounds": [0, ROUNDS]},
        lambda **found: told.append(found["seconds"]),
    )
    return told


def test_a_file_listed_twice_is_loaded_once_where_memory_is_scarce(tmp_path, monkeypatch) -> None:
    rounds_of(tmp_path, monkeypatch, size=1, available=6)  # three files of a byte: half of what is left
    assert Clock.made == ["a", "b", "b"]
    told = rounds_of(tmp_path, monkeypatch, size=1, available=5)
    assert Clock.made == ["a", "b"]
    assert {each.prefill_s for each in least_times(told)} == {0.5}  # never that of a prompt that was known


def test_slow_prompts_are_timed_in_two_rounds_and_quick_ones_in_every_second(tmp_path, monkeypatch) -> None:
    for size, rounds in ((1, [0, 2, 4, 6]), (2, [0, 4])):
        told = rounds_of(tmp_path, monkeypatch, size=size, available=100)
        assert [number for number, each in enumerate(told) if len(each) > 3] == rounds


def test_a_prompt_differs_by_its_two_least_rounds() -> None:
    first, second = least_times([[2.0, 1.0, 50.0, 60.0], [1.0, 3.0], [4.0, 4.0, 66.0, 60.0], [3.0, 3.0, 55.0, 90.0]])
    assert (first.step_s, first.prefill_s, first.prefill_spread) == pytest.approx((1.0, 50.0, 0.1))
    assert (second.step_s, second.prefill_s, second.prefill_spread) == (1.0, 60.0, 0.0)
    assert least_times([[1.0, 7.0], [2.0]])[0].prefill_spread == 0.0  # one round tells nothing
