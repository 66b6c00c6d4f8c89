"""Trains a supernet: each step trains a few sub-models, whose weights are slices of the same tensors.

Loop, budget, checkpoints and the handling of divergence are those of ``training/loop/trainer.py``; only the step
differs. A step samples a few designs, and trains each on a different batch of text, in tokens of its vocabulary.

References:
    Weights that designs share: Yu et al. 2020 (BigNAS), arXiv:2003.11142. The paper's sandwich rule and distillation
        gave worse results in short training runs (docs/notes/training.md).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chipwise.core.digest import digest
from chipwise.core.fields import losses_renamed
from chipwise.core.files import read_mapping
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.nn.precision import torch_dtype
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData, windows_of
from chipwise.training.laws.scaling import PACE
from chipwise.training.loop.checkpoint import CurvePoint
from chipwise.training.loop.loss import head_loss
from chipwise.training.loop.progress import Update
from chipwise.training.loop.trainer import Run
from chipwise.training.supernet.sliced import add_gradients, lend, part_of, with_weights
from chipwise.training.supernet.whole import whole_of

POOL = 1024  # designs sampled from a space


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetRecipe(Recipe):
    """Recipe for training a supernet. The defaults are the result of measurements: docs/notes/training.md."""

    designs: int = 4  # per step
    batch_windows: int = 8  # per design
    rate_width: int | None = None  # None: one learning rate for weights that designs of many widths share

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.designs < 1:
            raise SpecError(f"must be at least 1, not {self.designs}", field="designs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetResult:
    """Result of training a supernet."""

    whole: ArchSpec  # the supernet's architecture
    weights: str  # safetensors file with Transformer keys of ``whole``, in FP32
    tokens: int  # tokens of training, summed over all designs
    steps: int
    cpu_s: float  # CPU seconds charged for the steps that lead to these weights
    spent_cpu_s: float  # CPU seconds that the steps of this call really took
    loss: float  # mean over the designs of recent training batches
    curve: tuple[CurvePoint, ...]


def train_supernet(
    designs: SearchSpace | Sequence[ArchSpec],
    stores: Mapping[int, TokenData],
    *,
    cpu_budget_s: float,
    seed: int,
    folder: str | Path,
    recipe: SupernetRecipe | None = None,
    on_progress: Callable[[Update], None] | None = None,
    checkpoint_every_s: float = 10.0,
    clock: Callable[[], float] = time.process_time,
) -> SupernetResult:
    """Trains weights that ``designs`` share, for ``cpu_budget_s`` CPU seconds.

    A design's sampling probability is proportional to how often it is listed. The list should therefore leave out
    designs that exceed the limits, and may repeat promising ones. A run with the same settings in ``folder`` is
    continued.

    Args:
        designs: Designs to train together, or a space, from which designs are sampled at random.
        stores: The text, tokenised for each vocabulary size of the designs.
        cpu_budget_s: CPU seconds of the steps.
        seed: Random seed of the weights, the order of the text, and the designs of each step.
        folder: Folder for checkpoints and weights.
        recipe: Training recipe.
        on_progress: Called about once a second.
        checkpoint_every_s: Seconds between checkpoints.
        clock: Returns CPU seconds of this process.

    Raises:
        InputError: There are no designs, they cannot share weights, or there is no text for a vocabulary size.
        TrainingDiverged: The loss was no longer finite.
    """
    if not cpu_budget_s > 0:
        raise InputError(f"a training run needs a positive budget of CPU seconds, not {cpu_budget_s}")
    if isinstance(designs, SearchSpace):
        rows = designs.sample(POOL, np.random.default_rng([seed, 3]))
        designs = [designs.design(row).arch for row in rows]
    run = SupernetRun(designs, stores, cpu_budget_s, seed, Path(folder), recipe or SupernetRecipe(), clock)
    kept = run.kept()
    if kept is not None:
        return kept
    run.resume()
    run.loop(on_progress, checkpoint_every_s)
    return run.written()


class SupernetRun(Run):
    """A training run whose steps train several designs."""

    recipe: SupernetRecipe

    def __init__(
        self,
        designs: Sequence[ArchSpec],
        stores: Mapping[int, TokenData],
        budget: float,
        seed: int,
        folder: Path,
        recipe: SupernetRecipe,
        clock: Callable[[], float],
    ) -> None:
        whole = whole_of(designs)
        self.designs, self.stores = list(designs), stores
        sizes = sorted({arch.vocab_size for arch in designs})
        missing = [size for size in sizes if size not in stores]
        if missing:
            raise InputError(f"there is no tokenised text for vocabulary sizes {missing}, only for {sorted(stores)}")
        self.text = stores[sizes[-1]]
        self.window = self.text.window(whole, recipe)
        super().__init__(whole, self.text, budget, seed, folder, recipe, clock)
        lend(self.designs[0])  # the first model on the meta device imports parts of torch, which no step should pay for
        self.key = digest([self.key, sorted(arch.digest for arch in designs), "shared weights"])

    def backward(self) -> Tensor:
        """Computes the gradients of the step's designs; returns the designs' mean loss in nats."""
        designs, step = self.drawn(), self.at.steps
        gradients, whole = {}, dict(self.model.named_parameters())
        for name, parameter in whole.items():
            parameter.grad = gradients[name] = torch.zeros_like(parameter)
        weights = {name: parameter.detach() for name, parameter in whole.items()}
        total = torch.zeros(())
        for number, arch in enumerate(designs):
            data = self.stores[arch.vocab_size]
            place = step * len(designs) + number
            inputs, targets = windows_of(data.train, self.window, self.recipe.batch_windows, place, self.seed)
            parts = {n: p.detach().requires_grad_() for n, p in part_of(arch, self.arch, weights).items()}
            loss = with_weights(arch, parts, functools.partial(self._loss, inputs, targets))
            (loss / len(designs)).backward()  # type: ignore[no-untyped-call]
            add_gradients(arch, self.arch, parts, gradients)
            total += loss.detach() / len(designs) * (self.text.bytes_per_token / data.bytes_per_token)
        return total

    def drawn(self) -> list[ArchSpec]:
        """Samples the designs of this step."""
        random = np.random.default_rng([self.seed, 5, self.at.steps])
        return [self.designs[int(i)] for i in random.integers(len(self.designs), size=self.recipe.designs)]

    def _loss(self, inputs: Tensor, targets: Tensor, model: Transformer) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            x_BTD, _ = model.hidden(inputs)
        x_RD = x_BTD.reshape(-1, x_BTD.shape[-1]).to(torch_dtype(self.precision))
        return head_loss(x_RD, model.head_table, targets.reshape(-1))

    def _charge(self, elapsed_s: float) -> float:
        """CPU seconds charged for a step: its cost on an idle machine.

        Steps train different designs, so they differ in work, which is estimated with :func:`pace_s`. The charge is a
        step's work, multiplied by the lower quartile of recent seconds per unit of work, but never more than the step
        really took.
        """
        work_s = sum(pace_s(arch) for arch in self.drawn())
        self.recent_s.append(elapsed_s / work_s)
        return min(elapsed_s, work_s * float(np.quantile(self.recent_s, 0.25)))

    @property
    def step_tokens(self) -> int:
        """Number of tokens in one step, over all its designs."""
        return super().step_tokens * self.recipe.designs

    def kept(self) -> SupernetResult | None:
        """The result of this training run from an earlier call, if any."""
        if not (self.result_path.exists() and self.weights_path.exists()):
            return None
        found = losses_renamed(read_mapping(self.result_path))
        if found.pop("key", None) != self.key or not self.weights_are_whole():
            return None
        found.pop("whole", None)  # stored by earlier versions
        curve = tuple((p[0], p[1], p[2], p[3]) for p in found.pop("curve"))
        return SupernetResult(**found, curve=curve, whole=self.arch, weights=str(self.weights_path), spent_cpu_s=0.0)

    def written(self) -> SupernetResult:
        """Writes weights and result; deletes the checkpoint of the decay."""
        from safetensors.torch import save as to_bytes

        at = self.at
        result = SupernetResult(
            whole=self.arch,
            weights=str(self.weights_path),
            tokens=at.tokens,
            steps=at.steps,
            cpu_s=at.cpu_s,
            spent_cpu_s=self.spent_s,
            loss=at.loss,
            curve=tuple(at.curve),
        )
        figures = {name: getattr(result, name) for name in ("tokens", "steps", "cpu_s", "loss", "curve")}
        self.write(to_bytes(self.weights()), figures)
        return result


@functools.lru_cache(maxsize=4096)
def pace_s(arch: ArchSpec) -> float:
    """Predicted training seconds per token of ``arch``."""
    return float(1 / PACE.tokens_per_s(arch.parameters() - arch.embedding_parameters(), arch.vocab_size * arch.d_model))
