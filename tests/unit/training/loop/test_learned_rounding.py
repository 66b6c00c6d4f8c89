"""Learned rounding starts at another quantiser's model, comes closer to the original, and is packed without loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import TrainingDiverged
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import searched
from chipwise.model.blocks.quantize import GRID, Grid, Packing
from chipwise.model.walk.calibration import Lessons, restored
from chipwise.model.walk.module import load
from chipwise.training.loop.learned_rounding import Distance, Learned, distance_from, learn

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, ffn_width=48, max_tokens=16)
WEIGHTS = random_weights(ARCH, seed=0)
DESIGN = Design(arch=ARCH, weights="int4")


def lesson(number: int) -> list[np.ndarray]:
    """Eight rows of random tokens."""
    return [np.random.default_rng(number).integers(0, 40, (8, 16))]


class Run:
    """A descent whose clock counts its steps."""

    def __init__(self, distance: Distance | None = None, stop_at: int | None = None) -> None:
        self.distance = distance or distance_from(Lessons(original=load(ARCH, WEIGHTS), batch=lesson, logits=True))
        self.stop_at, self.steps, self.shares = stop_at, 0, []

    def step(self, model: torch.nn.Module, number: int) -> torch.Tensor:
        """The distance, until the run is stopped."""
        if number == self.stop_at:
            raise KeyboardInterrupt
        self.steps += 1
        return self.distance(model, number)

    def learned(self, steps: int, *, design: Design = DESIGN, grid: Grid = GRID, path: Path | None = None) -> Learned:
        """The result after ``steps``."""
        return learn(
            design,
            WEIGHTS,
            Packing(quantiser=searched, grid=grid),
            self.step,
            cpu_budget_s=steps,
            path=path,
            on_progress=self.shares.append,
            checkpoint_every_s=4,
            clock=lambda: float(self.steps),
        )


@pytest.mark.parametrize(
    ("weights", "grid"),
    [("int4", Grid()), ("int4", Grid(block=16, symmetric=False)), ("int8", Grid()), ("fp32 head:int4", Grid())],
)
def test_before_the_first_step_it_is_what_the_other_quantiser_packed(weights: str, grid: Grid) -> None:
    design = Design(arch=ARCH, weights=weights)
    found = Run().learned(0, design=design, grid=grid)
    _, wanted = restored(design, WEIGHTS, Packing(quantiser=searched, grid=grid))
    assert found.weights.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found.weights[name], value, atol=1e-6)
    joined = np.concatenate([found.weights[f"layers.0.attention.{part}.weight"] for part in "qkv"])
    if weights != "fp32 head:int4":  # an exported file packs these three as one matrix
        packed = found.packing.pack("layers.0.attention.q.weight", joined, weights)
        assert np.array_equal(packed.restored(), joined)


def test_it_comes_closer_to_the_original_on_other_data_and_is_packed_without_loss() -> None:
    run = Run()
    before, after = run.learned(0), run.learned(40)
    with torch.no_grad():
        distances = [float(run.distance(load(each.design.arch, each.weights), 1000)) for each in (before, after)]
    assert distances[1] < 0.8 * distances[0]
    assert run.shares == [i / 40 for i in range(40)]
    _, again = restored(after.design, after.weights, after.packing)
    assert all(np.array_equal(again[name], value) for name, value in after.weights.items())


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    whole = Run().learned(12)
    with pytest.raises(KeyboardInterrupt):
        Run(stop_at=10).learned(12, path=path)
    rest = Run()
    found = rest.learned(12, path=path)
    assert rest.steps == 12 - 8  # a checkpoint every four steps
    assert found.steps == whole.steps == 12
    assert all(np.array_equal(found.weights[name], value) for name, value in whole.weights.items())


def test_a_distance_that_is_not_finite_stops_with_the_step() -> None:
    odd = Run(lambda model, number: next(model.parameters()).sum() * (np.nan if number == 3 else 0.0))
    with pytest.raises(TrainingDiverged, match="step 3; use gptq"):
        odd.learned(5)


def test_distances_by_pencil() -> None:
    """Logits (0, ln 3) are probabilities ¼ and ¾; from ½ and ½ that is ¾ ln(3/2) + ¼ ln(½)."""
    even, uneven = (torch.nn.Linear(1, 2, bias=False) for _ in range(2))
    torch.nn.init.zeros_(even.weight)
    uneven.weight.data = torch.tensor([[0.0], [np.log(3)]], dtype=torch.float32)
    ones = lambda number: [np.ones((4, 1, 1), np.float32)]  # noqa: E731
    nats, share = (distance_from(Lessons(original=uneven, batch=ones, logits=each))(even, 0) for each in (True, False))
    assert float(nats.detach()) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert float(share.detach()) == pytest.approx(1)
