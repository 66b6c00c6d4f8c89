"""Where memory runs out a batch is computed in smaller parts, and the step is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chipwise.errors import DoesNotFit
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop import accelerated
from chipwise.training.loop.accelerated import AcceleratedRun, Execution, train_accelerated

RECIPE = Recipe(window_tokens=24, batch_windows=6, warmup_steps=5)


class Small(torch.nn.Module):
    """A device that holds so many windows at once."""

    def __init__(self, whole, windows: int, seen: list[int]) -> None:
        super().__init__()
        self.whole, self.windows, self.seen = whole, windows, seen

    def forward(self, inputs, targets):
        self.seen.append(len(inputs))
        if len(inputs) > self.windows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.whole(inputs, targets)


def trained(arch, data, folder: Path, *, windows: int | None = None, seen: list[int] | None = None, **execution):
    """Bits per byte and weights after eight steps on a device that holds so many windows."""
    start = AcceleratedRun.start

    def on_small(run) -> None:
        start(run)
        if windows is not None:
            run.loss = Small(run.loss, windows, [] if seen is None else seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerated.AcceleratedRun, "start", on_small)
        return train_accelerated(
            arch,
            data,
            execution=Execution(precision="fp32", **execution),
            steps=8,
            seed=1,
            folder=folder,
            recipe=RECIPE,
            max_validation_bytes=1000,
        )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_give_the_step_of_the_whole_batch(arch, data, tmp_path, accumulate) -> None:
    whole = trained(arch, data, tmp_path / "whole", accumulate=accumulate)
    seen: list[int] = []
    parts = trained(arch, data, tmp_path / "parts", windows=2, seen=seen, accumulate=accumulate)
    assert parts.tokens == whole.tokens
    assert parts.loss == pytest.approx(whole.loss, rel=1e-4)
    assert seen[:3] == [6, 3, 2]  # six windows, then halves of three, then four parts of at most two
    assert set(seen[2:]) == {2}  # what fits is remembered


def test_a_device_that_holds_no_window_is_refused(arch, data, tmp_path) -> None:
    with pytest.raises(DoesNotFit, match="too little memory to train on 1 x 24 tokens"):
        trained(arch, data, tmp_path, windows=0)


def test_other_errors_are_not_taken_for_it(arch, data, tmp_path, monkeypatch) -> None:
    def broken(run, inputs, targets):
        raise RuntimeError("a device-side assert")

    monkeypatch.setattr(accelerated._Loss, "forward", broken)
    with pytest.raises(RuntimeError, match="device-side"):
        trained(arch, data, tmp_path)


def test_a_compiled_training_is_the_same(arch, data, tmp_path) -> None:
    """The path through torch.compile, with the backend that only records the graph."""
    plain = trained(arch, data, tmp_path / "plain")
    compiled = trained(arch, data, tmp_path / "compiled", compiler="eager")
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-5)


def test_a_training_that_shares_its_device_is_charged_its_share(arch, data, tmp_path, monkeypatch) -> None:
    """On a clock on which a call takes 1/64 s, a step of a half of the device is charged 1/128 s."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(accelerated.time, "perf_counter", lambda: next(ticks) / 64)
    result = train_accelerated(
        arch,
        data,
        execution=Execution(precision="fp32", device_share=0.5),
        gpu_budget_s=0.125,
        seed=1,
        folder=tmp_path,
        recipe=RECIPE,
        max_validation_bytes=1000,
    )
    assert result.cpu_s == result.steps / 128 == 0.125
