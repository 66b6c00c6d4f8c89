"""Measures how fast one core of this machine trains, in a few real training steps."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from chipwise.core.files import build
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.nn.precision import Precision
from chipwise.training.data.dataset import Dataset
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.trainer import Run

STEPS = (2, 8)  # fewest and most; the first also reads the data, and the second may still fill caches
ENOUGH_S = 1.5  # CPU seconds since the first step after which no step beyond the fewest begins


def tokens_per_cpu_s(
    arch: ArchSpec,
    data: Dataset,
    recipe: Mapping[str, object],
    *,
    precision: Precision,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Tokens per CPU second when one core trains ``arch``, from the fastest of a few steps.

    Args:
        arch: The architecture.
        data: Training data that fits ``arch``.
        recipe: Fields of ``Recipe`` that differ from its defaults.
        precision: Number format of matrix products.
        clock: Returns the CPU seconds of this process.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = math.inf
    try:
        with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
            run = Run(
                arch,
                data,
                float(STEPS[-1]),
                0,
                Path(folder),
                build(Recipe, dict(recipe)),
                clock,
                counted=True,
                precision=precision,
            )
            spent = 0.0
            for done in range(STEPS[-1]):
                if done >= STEPS[0] and spent >= ENOUGH_S:
                    break
                begun = clock()
                run._step()
                seconds = clock() - begun
                best, spent = min(best, seconds), spent + (seconds if done else 0.0)
            return run.step_tokens / best
    finally:
        torch.set_num_threads(threads)
