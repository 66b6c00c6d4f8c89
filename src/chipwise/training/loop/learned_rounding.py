"""Learned rounding: improves a rounded model's integers, scales and FP32 parameters by gradient descent.

The descent starts from the result of another quantiser and reduces the distance between the outputs of the rounded and
the original model, so no labels are needed. In each step, the model runs with rounded matrices. Each integer is
the rounded value of a real-valued position. Gradients pass straight through the rounding to the position, and reach
scales and FP32 parameters (norms, biases, tables) as usual. Positions begin at the original weights divided by the
scales, clipped to within ``CELL`` of the quantiser's integers. Integers whose positions are closest to a rounding
boundary change first. The learning rate of positions is inversely proportional to the square root of the number of
steps, because gradients with random signs move a position in proportion to this root. Integers that change at random
raise the distance by more than scales and FP32 parameters can lower it. A killed run continues from its last
checkpoint.

References:
    Bengio et al. 2013 (arXiv:1308.3432): gradients straight through.
    Esser et al. 2020, LSQ (arXiv:1902.08153): learned scales.
    Malinovskii et al. 2024, PV-tuning (arXiv:2405.14852): few integers at a time, where the gradient is consistent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.core.digest import digest
from chipwise.errors import TrainingDiverged
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import Grid, Packed, Packing, Quantiser, levels, pack_integers
from chipwise.model.walk.calibration import AUTO, LEARNED, Choice, Judge, Lessons
from chipwise.model.walk.module import load
from chipwise.training.loop.adamw import AVERAGES, AdamW
from chipwise.training.loop.checkpoint import fingerprint, read_state, write_state

SCHEMA = "chipwise.rounding/1"
POSITION_RATE = 0.06  # step of a position between integers, times the square root of the number of steps
CELL = 0.4  # how far from its integer a position may begin
SCALE_RATE, OTHER_RATE = 0.003, 0.003  # steps as shares of the root mean square of the parameter
WARMUP = 0.1  # share of the budget in which the rates rise
STAGE = "CPU seconds of learned rounding"
OnProgress = Callable[[str, int, int], None]
Distance = Callable[[nn.Module, int], Tensor]
"""Function of a model and a batch number: differentiable distance of the model's outputs from the original's."""


class _Rounded(nn.Module):
    """Computes a weight (n, k) as integers times scales; the original weight of the module is not used."""

    low: Tensor
    high: Tensor
    zeros: Tensor

    def __init__(self, packed: Packed, grid: Grid, original: Float32Array) -> None:
        super().__init__()
        self.form, (self.n, self.k), self.free = packed.form, packed.restored().shape, packed.zeros is not None
        low, high, size = levels(packed.form, grid, self.k)
        groups = -(-self.k // size)
        restored, wanted = np.zeros((2, self.n, groups * size), np.float32)
        restored[:, : self.k], wanted[:, : self.k] = packed.restored(), original
        scales = packed.scales.reshape(self.n, groups, 1).astype(np.float32)
        shift = np.zeros_like(scales) if packed.zeros is None else low + packed.zeros[..., None].astype(np.float32)
        integers, places = (np.reshape(each, (self.n, groups, size)) / scales for each in (restored, wanted))
        integers = np.round(integers)
        self.positions = nn.Parameter(torch.from_numpy(np.clip(places, integers - CELL, integers + CELL)))
        self.scales = nn.Parameter(torch.from_numpy(scales.copy()))
        for name, value in (("low", low - shift), ("high", high - shift), ("zeros", shift - low)):
            self.register_buffer(name, torch.from_numpy(np.asarray(value, np.float32)))

    def integers(self) -> Tensor:
        """The rounded positions (n, groups, g)."""
        inside = torch.minimum(torch.maximum(self.positions, self.low), self.high)
        return inside + (inside.round() - inside).detach()

    def forward(self, _: Tensor) -> Tensor:
        return (self.integers() * self.scales).reshape(self.n, -1)[:, : self.k]

    def packed(self) -> Packed:
        """The matrix as the file stores it."""
        with torch.no_grad():
            values, scales = self.integers().numpy(), self.scales[..., 0].numpy().copy()
        return pack_integers(self.form, values, scales, self.k, self.zeros[..., 0].numpy() if self.free else None)


def distance_from(lessons: Lessons) -> Distance:
    """Returns a function that computes how far a model's outputs on a batch are from the original model's, on average.

    For logits, the distance is the KL divergence in nats per position; for other outputs, the relative squared
    difference.
    """

    def distance(model: nn.Module, number: int) -> Tensor:
        parts = []
        for each in lessons.batch(number):
            inputs = torch.as_tensor(each)
            with torch.no_grad():
                wanted = _outputs(lessons.original, inputs)
            found = _outputs(model, inputs)
            if lessons.logits:
                ours, theirs = (torch.log_softmax(x, dim=-1).flatten(end_dim=-2) for x in (found, wanted))
                parts.append(nn.functional.kl_div(ours, theirs, log_target=True, reduction="batchmean"))
            else:
                parts.append((found - wanted).square().sum() / wanted.square().sum())
        return torch.stack(parts).mean()

    return distance


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    found = model(inputs)
    outputs: Tensor = found[0] if isinstance(found, tuple) else found
    return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Result of :func:`learn`."""

    design: Design  # a tied head becomes a separate table
    weights: Mapping[str, AnyArray]  # what the model computes with: rounded matrices as restored, others in FP32
    packing: Packing  # packs these weights without a further loss
    steps: int
    cpu_s: float


def learn(
    design: Design,
    weights: Mapping[str, AnyArray],
    packing: Packing,
    distance: Distance,
    *,
    cpu_budget_s: float,
    path: Path | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
    checkpoint_every_s: float = 20.0,
    clock: Callable[[], float] = time.process_time,
) -> Learned:
    """Rounds ``weights`` by ``packing``, and improves the result for ``cpu_budget_s`` CPU seconds.

    Args:
        design: The model and its formats.
        weights: The model's weights in FP32.
        packing: The quantiser from which to start, the inputs of each matrix, and how int4 values share scales.
        distance: The loss to minimise.
        cpu_budget_s: CPU seconds of the descent, including those spent before an interruption.
        path: File of the checkpoint; None to write no checkpoint.
        on_progress: Called with the share of the budget that has been spent.
        checkpoint_every_s: CPU seconds between checkpoints.
        clock: Returns the CPU seconds of this process.

    Raises:
        TrainingDiverged: The distance was no longer finite.
    """
    own = replace(design, arch=design.arch.with_tied(False))
    held = dict(weights)
    if own.arch.head.writes and "head.weight" not in held:
        held["head.weight"] = held["embedding.weight"]
    model, made = load(own.arch, held), dict[str, _Rounded]()
    for name, module in list(model.named_modules()):
        stored = own.format_of(f"{name}.weight") if isinstance(module, nn.Linear) else "fp32"
        if stored != "fp32":
            matrix = np.ascontiguousarray(held[f"{name}.weight"], np.float32)
            made[name] = _Rounded(packing.pack(f"{name}.weight", matrix, stored), packing.grid, matrix)
            parametrize.register_parametrization(module, "weight", made[name], unsafe=True)
            module.parametrizations.weight.original.requires_grad_(False)
    others = {
        name: value
        for name, value in model.named_parameters()
        if value.requires_grad and not name.endswith((".positions", ".scales"))
    }
    trained = {f"{name}.positions": each.positions for name, each in made.items()}
    trained |= {f"{name}.scales": each.scales for name, each in made.items()} | others
    optimiser, peaks = AdamW(betas=(0.9, 0.99)), {name: _peak(name, value) for name, value in trained.items()}
    key = digest([own.digest, fingerprint(held), fingerprint(trained), cpu_budget_s])
    step, spent = _resumed(path, key, trained, optimiser)
    begun, saved = clock() - spent, spent
    while (spent := clock() - begun) < cpu_budget_s:
        done = spent / cpu_budget_s
        on_progress(done)
        steps = max((step + 1) / max(done, 1e-3), 1.0)  # steps that the budget allows at this pace
        model.zero_grad(set_to_none=True)
        loss = distance(model, step)
        loss.backward()  # type: ignore[no-untyped-call]
        if not torch.isfinite(loss):
            raise TrainingDiverged(f"learned rounding: the distance was no longer finite at step {step}; use gptq")
        for name, value in trained.items():
            full = peaks[name] / (math.sqrt(steps) if name.endswith(".positions") else 1.0)
            rate = full * min((done + 1e-3) / WARMUP, 1.0, (1 - done) / (1 - WARMUP))
            optimiser.step([(name, value)], lr=rate)
        step += 1
        if path is not None and clock() - begun - saved >= checkpoint_every_s:
            saved = clock() - begun
            averages = {
                f"{name}/{part}": kept
                for name, averages in optimiser.averages.items()
                for part, kept in averages.items()
            }
            write_state(path, SCHEMA, key, trained | averages, {"step": step, "cpu_s": saved})
    found = held | {name: value.detach().numpy().copy() for name, value in others.items()}
    quantiser, restored = _known({name: each.packed() for name, each in made.items()}, packing)
    return Learned(
        design=own,
        weights=found | restored,
        packing=replace(packing, quantiser=quantiser),
        steps=step,
        cpu_s=spent,
    )


def learn_steps(
    design: Design, weights: Mapping[str, AnyArray], packing: Packing, distance: Distance, *, steps: int
) -> Learned:
    """As :func:`learn`, but the budget and ``Learned.cpu_s`` count steps, so results are equal on all machines."""
    done = 0

    def counted(model: nn.Module, number: int) -> Tensor:
        nonlocal done
        done += 1
        return distance(model, number)

    return learn(design, weights, packing, counted, cpu_budget_s=steps, clock=lambda: float(done))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights with which a module computes, including the rounded ones; gradients can be taken through them."""
    found = dict[str, Tensor](each for each in model.named_parameters() if ".parametrizations." not in each[0])
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            found[f"{name}.weight"] = module.weight
    return found


def learned_or_chosen(
    design: Design,
    weights: Mapping[str, AnyArray],
    packing: Packing,
    distance: Distance,
    *,
    choice: Choice,
    judge: Judge,
    method: str,
    cpu_budget_s: float,
    path: Path,
    on_progress: OnProgress,
) -> tuple[Choice, Learned | None]:
    """Runs learned rounding, starting from ``packing``, and chooses it or the best quantiser that was tried before.

    Args:
        judge: Computes the loss by which quantisers are chosen.
        method: ``learned`` to choose learned rounding in any case, or ``auto`` to choose whichever has the lower loss.
        on_progress: Called with the name of a stage, the CPU seconds that it has spent, and the CPU seconds that it may
            spend.

    Returns:
        The new choice, and the result of learned rounding (None if learned rounding is not chosen).
    """
    found = learn(
        design,
        weights,
        packing,
        distance,
        cpu_budget_s=cpu_budget_s,
        path=path,
        on_progress=lambda share: on_progress(STAGE, int(share * cpu_budget_s), int(cpu_budget_s)),
    )
    both = choice.beside(LEARNED, judge(found.design.arch, found.weights), found.cpu_s)
    if method == AUTO and both.method != LEARNED:
        return both, None
    return replace(both, method=LEARNED), found


def _peak(name: str, value: Tensor) -> float:
    """The peak learning rate of a parameter."""
    if name.endswith(".positions"):
        return POSITION_RATE
    share = SCALE_RATE if name.endswith(".scales") else OTHER_RATE
    return share * (float(value.detach().square().mean().sqrt()) + 1e-3)


def _resumed(path: Path | None, key: str, trained: Mapping[str, nn.Parameter], optimiser: AdamW) -> tuple[int, float]:
    """Restores this run's checkpoint; returns its steps and CPU seconds, both 0 if there is no checkpoint."""
    if path is None or (found := read_state(path, SCHEMA, key)) is None:
        return 0, 0.0
    tensors, facts = found
    for name, value in trained.items():
        value.data.copy_(tensors[name])
        if f"{name}/step" in tensors:
            optimiser.put(name, value, [tensors[f"{name}/{part}"] for part in AVERAGES])
    return facts.get("step", int), facts.get("cpu_s", float)


def _known(matrices: Mapping[str, Packed], before: Packing) -> tuple[Quantiser, dict[str, Float32Array]]:
    """Returns a quantiser that keeps the integers and scales of ``matrices``, and the unpacked matrices by weight name.

    The quantiser recognises rows of ``matrices`` by their values, in whatever order an exporter puts them. A matrix
    that has any other row is packed by the quantiser of ``before``.
    """
    restored = {f"{name}.weight": packed.restored() for name, packed in matrices.items()}
    rows = {
        (packed.form, row.tobytes()): (packed, i)
        for name, packed in matrices.items()
        for i, row in enumerate(restored[f"{name}.weight"])
    }

    def known(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None], grid: Grid) -> Packed:
        places = [rows.get((form, row.tobytes())) for row in np.ascontiguousarray(matrix, np.float32)]
        found = [place for place in places if place is not None]
        if len(found) < len(places):
            return before.quantiser(matrix, form, inputs=inputs, grid=grid)
        values, scales = (np.stack([getattr(packed, part)[i] for packed, i in found]) for part in ("values", "scales"))
        zeros = [packed.zeros[i] for packed, i in found if packed.zeros is not None]
        return Packed(form, values, scales, matrix.shape[1], np.stack(zeros) if zeros else None)

    return known, restored
