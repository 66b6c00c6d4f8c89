"""Heals a pruned model: trains it to reproduce the original's outputs.

Embedding tables are not trained, so that tokens or items missing in the data keep their meaning. Training that was
killed continues from its last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chipwise.core.digest import digest
from chipwise.design.shrink.forward import Weights
from chipwise.design.shrink.material import Comparison
from chipwise.design.shrink.sizes import generates
from chipwise.design.shrink.texts import BATCH_TOKENS
from chipwise.errors import SpecError, TrainingDiverged
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.nn.precision import Precision
from chipwise.training.loop.checkpoint import fingerprint, read_state, write_state

Named = dict[str, Tensor]
SCHEMA = "chipwise.distilling/2"
SAVING = 20  # CPU seconds between checkpoints, at least this many times those for writing one
_TABLES = ("embedding.weight", "stem.items.weight", "stem.tags.weight", "words.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """Settings for training a pruned model on the outputs of the original."""

    steps: int = 300
    rate: float | None = None  # peak learning rate of AdamW; None: :func:`usual_rate`
    warmup_steps: int = 20
    batch_tokens: int = BATCH_TOKENS
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise SpecError(f"must be at least 0, but is {self.steps}", field="steps")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise SpecError(f"must be positive, not {self.rate}", field="rate")

    def scale(self, step: int) -> float:
        """Factor on the peak learning rate at ``step``: linear warm-up, then linear decay to zero."""
        return min((step + 1) / self.warmup_steps, (self.steps - step) / self.steps)


def usual_rate(arch: ArchSpec) -> float:
    """Default peak learning rate of healing. Wide decoders need a lower rate.

    With SmolLM2-135M at width 768, 40 steps at a rate of 3e-5 reduce the distance between pruned model and original
    from 0.572 to 0.472, but at 1e-4 they raise it to 0.600.
    """
    return min(5e-4, 0.025 / arch.d_model) if generates(arch) else 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """Result of healing."""

    weights: Named
    cpu_s: float
    steps: int


class Distiller:
    """Heals one pruned model.

    Args:
        arch: The pruned model's architecture.
        weights: The pruned model's initial weights.
        comparison: The original's results on the training data.
        healing: The number of steps and the learning rate.
        seed: Random seed for the order of batches.
        path: Path of the checkpoint.
        precision: Number format of the comparison's matrix products. A checkpoint made with another format is not used.
    """

    def __init__(
        self,
        arch: ArchSpec,
        weights: Weights,
        comparison: Comparison,
        *,
        healing: Healing,
        seed: int,
        path: Path,
        precision: Precision = "fp32",
    ) -> None:
        self.arch, self.comparison, self.healing = arch, comparison, healing
        self.path, self.seed = path, seed
        self.rate = usual_rate(arch) if healing.rate is None else healing.rate
        self.start = {name: value.clone() for name, value in weights.items()}
        self.key = digest([arch.digest, fingerprint(self.start), comparison.identity, healing, seed, precision])
        self._begin(self.start, step=0, rate_scale=1.0)
        self.cpu_s = 0.0

    def run(self, on_progress: Callable[[int, int, float], None], *, checkpoint_every_s: float = 20.0) -> Distilled:
        """Trains until the last step; ``on_progress`` is called with the step, the number of steps and the loss.

        Raises:
            TrainingDiverged: The loss became infinite or NaN, even at half the rate.
        """
        self._resume()
        saved_s, saving_s = self.cpu_s, 0.0
        while self.step < self.healing.steps:
            begun = time.process_time()
            loss = self._step()
            self.cpu_s += time.process_time() - begun
            if not math.isfinite(loss):
                self._fall_back()
                continue
            self.step += 1
            on_progress(self.step, self.healing.steps, loss)
            if self.cpu_s - saved_s >= max(checkpoint_every_s, SAVING * saving_s):
                saved_s, begun = self.cpu_s, time.process_time()
                self.save()
                saving_s = time.process_time() - begun
        if self.healing.steps:
            self.save()
        return Distilled(
            weights={name: value.detach().clone() for name, value in self.weights.items()},
            cpu_s=self.cpu_s,
            steps=self.step,
        )

    def _begin(self, weights: Weights, *, step: int, rate_scale: float) -> None:
        self.weights = {name: value.clone() for name, value in weights.items()}
        self.trained = {name: value for name, value in self.weights.items() if name not in _TABLES}
        for value in self.trained.values():
            value.requires_grad_()
        vectors = [value for value in self.trained.values() if value.ndim == 1]
        matrices = [value for value in self.trained.values() if value.ndim > 1]
        decay = self.healing.weight_decay
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=self.rate,
            betas=(0.9, 0.98),
            fused=True,
        )
        self.step, self.rate_scale = step, rate_scale

    def _step(self) -> float:
        batch = self.comparison.lesson(self.step, tokens=self.healing.batch_tokens, seed=self.seed)
        loss = self.comparison.loss(self.arch, self.weights, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        total = float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.healing.clip_norm)
        if not (math.isfinite(total) and torch.isfinite(norm)):
            return math.nan
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * self.rate_scale * self.healing.scale(self.step)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return total

    def _fall_back(self) -> None:
        """Returns to the last checkpoint and halves the learning rate; raises an error the second time."""
        if self.rate_scale < 1:
            raise TrainingDiverged(
                f"the loss was no longer finite at step {self.step}, even at half the rate; lower the rate, "
                f"which is {self.rate:g}"
            )
        if not self._resume():
            self._begin(self.start, step=0, rate_scale=1.0)
        self.rate_scale = 0.5

    def save(self) -> None:
        """Writes the current state atomically: a killed process leaves the previous checkpoint or the new one."""
        tensors = {f"weights.{name}": value for name, value in self.weights.items()}
        for name, value in self.trained.items():
            for key, average in self.optimiser.state.get(value, {}).items():
                tensors[f"adam.{key}.{name}"] = average
        facts = {"step": self.step, "rate_scale": self.rate_scale, "cpu_s": self.cpu_s}
        write_state(self.path, SCHEMA, self.key, tensors, facts)

    def _resume(self) -> bool:
        """Loads the checkpoint; returns False if this training run has no readable checkpoint."""
        found = read_state(self.path, SCHEMA, self.key)
        if found is None:
            return False
        tensors, at = found
        weights = {name: tensors[f"weights.{name}"] for name in self.start}
        self._begin(weights, step=at.get("step", int), rate_scale=at.get("rate_scale", float))
        for name, value in self.trained.items():
            kept = {
                key: tensors[f"adam.{key}.{name}"]
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{key}.{name}" in tensors
            }
            if kept:
                self.optimiser.state[value] = kept
        self.cpu_s = at.get("cpu_s", float)
        return True
