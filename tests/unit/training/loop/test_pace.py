"""How fast this machine trains, by a clock on which every step takes 1/64 s."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.pace import tokens_per_cpu_s


def test_a_step_of_a_64th_of_a_second_trains_64_batches_in_a_second(
    arch: ArchSpec, data: TokenData, clock: Callable[[], float]
) -> None:
    """Four windows of 32 tokens a step: 128 tokens, 8,192 a second; the process keeps its threads."""
    threads = torch.get_num_threads()
    recipe = {"window_tokens": 32, "batch_windows": 4}
    assert data.step_tokens(arch, Recipe(**recipe)) == 128
    assert tokens_per_cpu_s(arch, data, recipe, precision="fp32", clock=clock) == pytest.approx(8192)
    assert torch.get_num_threads() == threads
