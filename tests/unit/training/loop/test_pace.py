"""How fast this machine trains, by a clock on which every step takes 1/64 s."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.pace import tokens_per_cpu_s
from chipwise.training.loop.trainer import Run


def test_a_step_of_a_64th_of_a_second_trains_64_batches_in_a_second(
    arch: ArchSpec, data: TokenData, clock: Callable[[], float]
) -> None:
    """Four windows of 32 tokens a step: 128 tokens, 8,192 a second; the process keeps its threads."""
    threads = torch.get_num_threads()
    recipe = {"window_tokens": 32, "batch_windows": 4}
    assert data.step_tokens(arch, Recipe(**recipe)) == 128
    assert tokens_per_cpu_s(arch, data, recipe, precision="fp32", clock=clock) == pytest.approx(8192)
    assert torch.get_num_threads() == threads


def test_steps_that_only_fill_caches_do_not_count(
    arch: ArchSpec, data: TokenData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step takes 8 s and the second half a second: a third one takes a 64th of a second and counts."""
    now, steps = [0.0], iter([8.0, 0.5, 1 / 64, *[0.25] * 5])

    def step(run: Run) -> None:
        now[0] += next(steps)

    monkeypatch.setattr(Run, "_step", step)
    recipe = {"window_tokens": 32, "batch_windows": 4}
    assert tokens_per_cpu_s(arch, data, recipe, precision="fp32", clock=lambda: now[0]) == pytest.approx(8192)


def test_a_slow_processor_takes_two_steps(arch: ArchSpec, data: TokenData, monkeypatch: pytest.MonkeyPatch) -> None:
    now, taken = [0.0], []

    def step(run: Run) -> None:
        taken.append(now)
        now[0] += 2.0

    monkeypatch.setattr(Run, "_step", step)
    recipe = {"window_tokens": 32, "batch_windows": 4}
    assert tokens_per_cpu_s(arch, data, recipe, precision="fp32", clock=lambda: now[0]) == pytest.approx(64)
    assert len(taken) == 2
