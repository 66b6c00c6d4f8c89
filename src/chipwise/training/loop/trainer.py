"""Trains one model within a budget of CPU seconds or steps; a run that was killed can be resumed.

The learning rate warms up, stays constant, and decays to zero over the last part of the budget. The state before the
decay is stored, so that a run with a larger budget can continue from there and only repeats the decay. The budget
counts the CPU time that steps would take on an otherwise idle machine, without validation and checkpoints. A busy
machine therefore delays the result, but does not change it. A budget in steps gives the same weights on every machine
with the same arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from chipwise.core.digest import digest
from chipwise.core.fields import losses_renamed
from chipwise.core.files import read_mapping, storage, write_atomic, write_json
from chipwise.errors import InputError, TrainingDiverged
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.nn.precision import Precision, fastest_precision, torch_dtype
from chipwise.model.walk.module import build
from chipwise.training.data.dataset import Dataset, with_held
from chipwise.training.data.recipe import STEPS, Recipe, budget_name
from chipwise.training.loop import checkpoint
from chipwise.training.loop.checkpoint import CurvePoint, Progress, fingerprint
from chipwise.training.loop.evaluate import Weights, checked, load_model, read
from chipwise.training.loop.optimiser import Optimiser
from chipwise.training.loop.progress import Update
from chipwise.training.loop.threads import GradientThreads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Result of a finished training run."""

    loss: float  # loss on the validation text
    perplexity: float | None = None  # per token, of text
    tokens: int
    steps: int
    cpu_s: float  # CPU seconds charged for the steps that lead to these weights
    spent_cpu_s: float  # CPU seconds that the steps of this call really took
    curve: tuple[CurvePoint, ...]
    weights: str  # safetensors file with Transformer keys, in FP32
    dtype: Precision  # precision of matrix products


def train(
    arch: ArchSpec,
    data: Dataset,
    *,
    cpu_budget_s: float | None = None,
    steps: int | None = None,
    seed: int,
    folder: str | Path,
    recipe: Recipe | None = None,
    start: Weights | str | Path | None = None,
    precision: Precision | None = None,
    threads: int = 1,
    on_progress: Callable[[Update], None] | None = None,
    max_validation_bytes: int | None = None,
    checkpoint_every_s: float = 10.0,
    clock: Callable[[], float] = time.process_time,
) -> TrainResult:
    """Trains ``arch`` on ``data`` for ``cpu_budget_s`` or ``steps``, and evaluates it on the validation text.

    If ``folder`` contains a training run with the same architecture, data, seed, recipe and ``start``, this run is
    continued: from its last checkpoint if it was killed, or from its state before the decay if it finished with a
    smaller budget. ``start`` are the initial weights, such as those of a supernet: tensors by name or a safetensors
    file; default: random weights. ``precision`` is the number format of matrix products; default: the faster one on
    this machine, or that of the continued run. Each step is divided among ``threads`` threads: the run ends earlier,
    but steps take up to 15 % more CPU time.

    Raises:
        TrainingDiverged: Loss or weights were no longer finite, even at half the learning rate.
        InputError: The budget is not positive, or the data or the weights do not fit the architecture.
    """
    if (cpu_budget_s is None) == (steps is None):
        raise InputError("give exactly one budget: CPU seconds or steps")
    budget = float(steps if steps is not None else cpu_budget_s or 0)
    if not (budget > 0 and math.isfinite(budget)):
        unit = "CPU seconds" if steps is None else "steps"
        raise InputError(f"a training run needs a positive budget of {unit}, not {budget:g}")
    data.require_fit(arch)
    given = read(start) if isinstance(start, str | Path) else start
    run = Run(
        arch,
        data,
        budget,
        seed,
        Path(folder),
        recipe or Recipe(),
        clock,
        counted=steps is not None,
        given=given,
        precision=precision,
        threads=threads,
    )
    try:
        return run.go(on_progress, checkpoint_every_s, max_validation_bytes)
    finally:
        run.close()


def trained_again(
    arch: ArchSpec,
    data: Dataset,
    weights: Path,
    *,
    seed: int,
    precision: Precision | None = None,
    recipe: Recipe | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Path:
    """Returns the file ``weights`` of a finished run; if it is unreadable, trains again from the last checkpoint.

    Raises:
        InputError: ``weights`` is not a file name that a training run writes.
    """
    text = weights.stem.removeprefix("weights-")
    counted = text.endswith(STEPS)
    try:
        budget = float(text.removesuffix(STEPS))
    except ValueError:
        raise InputError(f"{weights}: is not the name of a training run's final weights") from None
    result = train(
        arch,
        data,
        cpu_budget_s=None if counted else budget,
        steps=int(budget) if counted else None,
        seed=seed,
        folder=weights.parent,
        recipe=recipe,
        precision=precision,
        clock=clock,
    )
    return Path(result.weights)


class Run:
    """A training run: its state, loop and files. ``accelerated.py`` extends this class for GPUs.

    If ``counted`` is true, the budget is in steps, otherwise in seconds.
    """

    given: Weights | None = None  # initial weights; random ones if None

    def __init__(
        self,
        arch: ArchSpec,
        data: Dataset,
        budget: float,
        seed: int,
        folder: Path,
        recipe: Recipe,
        clock: Callable[[], float],
        *,
        counted: bool = False,
        given: Weights | None = None,
        precision: Precision | None = None,
        threads: int = 1,
    ) -> None:
        self.counted = counted
        self.threads = GradientThreads(threads) if threads > 1 else None
        self.arch, self.data, self.budget, self.seed = arch, data, budget, seed
        self.folder, self.recipe, self.clock = folder, recipe, clock
        self.precision: Precision = precision or fastest_precision()
        self.key = digest([arch.as_trained().digest, data.identity, seed, recipe, *([precision] if precision else [])])
        if given is not None:
            self.given = checked(given, arch)
            self.key = digest([self.key, fingerprint(given)])
        self.name_files(budget_name(budget, counted=counted))
        self.decay_start = budget * (1 - recipe.decay_share)
        self.spent_s = 0.0
        self.recent_s: deque[float] = deque(maxlen=60)
        self.start()

    def name_files(self, budget: str) -> None:
        """Sets the names of the run's files; all budgets have the same file for the state before the decay."""
        self.stable_path = self.folder / "stable.safetensors"
        self.branch_path = self.folder / f"decay-{budget}.safetensors"
        self.weights_path = self.folder / f"weights-{budget}.safetensors"
        self.result_path = self.folder / f"result-{budget}.json"

    def spent(self, at: Progress) -> float:
        """Steps or seconds of the budget that have been spent at the progress ``at``."""
        return float(at.steps) if self.counted else at.cpu_s

    def go(
        self, report: Callable[[Update], None] | None, checkpoint_every_s: float, max_validation_bytes: int | None
    ) -> TrainResult:
        """Returns the stored result, or trains from the stored state and returns the result."""
        finished = self.finished(max_validation_bytes)
        if finished is not None:
            return finished
        self.resume()
        self.loop(report, checkpoint_every_s)
        return self.finish(max_validation_bytes)

    def start(self) -> None:
        """Builds the model with its initial weights: the given ones, or random ones."""
        self.model: Transformer = with_held(build(self.arch, seed=self.seed), self.data).train()
        if self.given is not None:
            self.take({name: torch.from_numpy(np.array(value, np.float32)) for name, value in self.given.items()})
        self.optimiser = self._optimiser()
        self.at = Progress(precision=self.precision)

    def _optimiser(self) -> Optimiser:
        recipe = self.recipe
        matrix_rate, table_rate = recipe.rates(self.arch.d_model)
        return Optimiser(
            self.model,
            matrix_rate=matrix_rate,
            table_rate=table_rate,
            weight_decay=recipe.weight_decay,
            table_decay=recipe.table_decay,
            rounds=recipe.rounds,
            momentum=recipe.momentum,
        )

    def finished(self, max_validation_bytes: int | None = None) -> TrainResult | None:
        """The result of this training run from an earlier call, if any.

        If the earlier call evaluated with a different number of sampling steps (``ArchSpec.as_trained``), the weights
        are evaluated again.
        """
        if not (self.result_path.exists() and self.weights_path.exists()):
            return None
        kept = losses_renamed(read_mapping(self.result_path))
        if kept.pop("key", None) != self.key or not self.weights_are_whole():
            return None
        if kept.pop("judged", self.arch.as_trained().digest) != self.arch.digest:
            model = load_model(self.arch, self.weights_path)
            kept["loss"] = self.data.judge(model, most=max_validation_bytes).loss
        curve = tuple((p[0], p[1], p[2], p[3]) for p in kept.pop("curve"))
        return TrainResult(**{**kept, "curve": curve, "weights": str(self.weights_path), "spent_cpu_s": 0.0})

    def weights_are_whole(self) -> bool:
        """Whether the file of the final weights can be read; if not, training is repeated."""
        try:
            checked(read(self.weights_path), self.arch)
        except InputError:
            return False
        return True

    def resume(self) -> bool:
        """Loads the latest stored state that can be continued to this budget; False if there is none."""
        for path, furthest in ((self.branch_path, self.budget), (self.stable_path, self.decay_start)):
            kept = checkpoint.load(path, self.key)
            if kept is not None and self.spent(kept[0]) <= furthest * (1 + 1e-9) + 1.0:
                self.at, weights, averages = kept
                self.precision = self.at.precision
                self.take(weights)
                self.optimiser = self._optimiser()
                self.optimiser.load(averages)
                return True
        return False

    def take(self, weights: dict[str, Tensor]) -> None:
        """Loads these weights into the model."""
        self.model.load_state_dict(weights)

    def weights(self) -> dict[str, Tensor]:
        """The model's weights, unsharded, in host memory."""
        return dict(self.model.state_dict())

    def save(self, path: Path) -> None:
        """Writes the current state of the training run."""
        checkpoint.save(path, self.key, self.at, self.weights(), self.optimiser.state())

    def loop(self, report: Callable[[Update], None] | None, checkpoint_every_s: float) -> None:
        """Trains until the budget is spent."""
        at, saved_s, told_s = self.at, self.at.cpu_s, self.at.cpu_s
        retried = False
        while self.spent(at) < self.budget:
            if at.decay_from is None and self.spent(at) >= self.decay_start:
                self._keep_stable()
                at.decay_from = self.spent(at)
            before = self.clock()
            loss = self._step()
            elapsed_s = self.clock() - before
            self.spent_s += elapsed_s
            at.cpu_s += self._charge(elapsed_s)
            if not math.isfinite(loss):
                if retried:
                    raise TrainingDiverged(
                        f"the loss was no longer finite at step {at.steps}, even at half the learning rate; lower "
                        f"the recipe's rates (matrix {self.recipe.matrix_rate:g}, table {self.recipe.table_rate:g}) "
                        "or leave this architecture out"
                    )
                retried = True
                at = self._fall_back()
                continue
            self._record(loss)
            self.after_step()
            if at.cpu_s - told_s >= 1.0 and report is not None:
                told_s = at.cpu_s
                report(self._update())
            if at.cpu_s - saved_s >= checkpoint_every_s:
                saved_s = at.cpu_s
                self.save_here()
        if report is not None:
            report(self._update())

    def after_step(self) -> None:
        """Called after each step, when the state is consistent."""

    def save_here(self) -> None:
        """Writes the current state to the file of the current phase (before or in the decay)."""
        self.save(self.stable_path if self.at.decay_from is None else self.branch_path)

    def _charge(self, elapsed_s: float) -> float:
        """CPU seconds charged for a step: at most the time of the second fastest of the last sixty steps.

        This is about the time on an idle machine. Another process on the same core evicts the caches, which makes steps
        up to 50 % slower. Charging this additional time would give the model fewer steps.
        """
        self.recent_s.append(elapsed_s)
        return min(elapsed_s, sorted(self.recent_s)[:2][-1])

    def _update(self) -> Update:
        at = self.at
        return Update(
            cpu_s=at.cpu_s,
            cpu_budget_s=None if self.counted else self.budget,
            tokens=at.tokens,
            loss=None if math.isnan(at.loss) else at.loss,
            share=min(1.0, self.spent(at) / self.budget),  # the last step may exceed the budget
        )

    def _keep_stable(self) -> None:
        """Saves the state before the decay, unless a run with a larger budget already saved a later state."""
        kept = checkpoint.load(self.stable_path, self.key)
        if kept is None or self.spent(kept[0]) <= self.spent(self.at):
            self.save(self.stable_path)

    def _fall_back(self) -> Progress:
        """Returns to the last good state and halves the learning rate."""
        spent_s, scale = self.at.cpu_s, self.at.rate_scale / 2
        self.start()
        self.resume()
        self.at.cpu_s = max(self.at.cpu_s, self.lost(spent_s))
        self.at.rate_scale = scale
        return self.at

    def lost(self, spent_s: float) -> float:
        """Seconds charged for a failed attempt that took ``spent_s``: at most half of the budget.

        With a budget in steps, all of ``spent_s`` is charged, and the number of steps returns to that of the restored
        state.
        """
        return spent_s if self.counted else min(spent_s, self.budget * 0.5)

    def close(self) -> None:
        """Ends the training run's threads."""
        if self.threads is not None:
            self.threads.close()

    def backward(self) -> Tensor:
        """Computes the gradient of the next batch; returns the batch's mean loss."""
        batch = self.data.batch(self.arch, self.recipe, self.at.steps, seed=self.seed)
        dtype = torch_dtype(self.precision)
        if self.threads is not None:
            return self.threads.backward(self.model, lambda some: self.data.loss(self.model, some, dtype), batch)
        loss = self.data.loss(self.model, batch, dtype)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _step(self) -> float:
        """Takes one optimiser step; returns the batch's loss, NaN if loss or gradient are not finite."""
        loss = self.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        if not (torch.isfinite(norm) and torch.isfinite(loss)):
            return math.nan
        self.optimiser.step(self._rate_share())
        self.model.zero_grad(set_to_none=True)
        return float(loss)

    def _rate_share(self) -> float:
        """Factor on the peak learning rate in the next step."""
        at = self.at
        share = at.rate_scale * min(1.0, (at.steps + 1) / self.recipe.warmup_steps)
        if at.decay_from is None:
            return share
        left = (self.budget - self.spent(at)) / (self.budget - at.decay_from)
        return share * min(1.0, max(0.0, left))

    @property
    def step_tokens(self) -> int:
        """Number of tokens in one step."""
        return self.data.step_tokens(self.arch, self.recipe)

    def _record(self, loss: float) -> None:
        at = self.at
        at.steps += 1
        at.tokens += self.step_tokens
        now = self.data.shown_loss(loss)
        keep = min(0.95, 1 - 1 / at.steps)
        at.loss = now if math.isnan(at.loss) else keep * at.loss + (1 - keep) * now
        last = at.curve[-1][0] if at.curve else -1.0
        if at.cpu_s - last >= max(0.5, at.cpu_s / 50):
            at.curve.append((round(at.cpu_s, 3), at.tokens, round(at.loss, 5), None))

    def finish(self, max_validation_bytes: int | None) -> TrainResult:
        """Evaluates the weights and writes them together with the result."""
        from safetensors.torch import save as to_bytes

        at = self.at
        quality = self.data.judge(
            self.whole_model().eval(), most=max_validation_bytes, dtype=torch_dtype(self.precision)
        )
        if not math.isfinite(quality.loss):
            raise TrainingDiverged(f"the loss after step {at.steps} is not finite; lower the recipe's rates")
        curve = (*at.curve, (round(at.cpu_s, 3), at.tokens, round(at.loss, 5), quality.loss))
        result = TrainResult(
            loss=quality.loss,
            perplexity=quality.perplexity,
            tokens=at.tokens,
            steps=at.steps,
            cpu_s=at.cpu_s,
            spent_cpu_s=self.spent_s,
            curve=curve,
            weights=str(self.weights_path),
            dtype=self.precision,
        )
        self.keep(result, to_bytes(self.weights()))
        return result

    def whole_model(self) -> Transformer:
        """The model to evaluate."""
        return self.model

    def keep(self, result: TrainResult, weights: bytes) -> None:
        """Writes weights and result; deletes the checkpoint of the decay."""
        judged = {} if self.arch == self.arch.as_trained() else {"judged": self.arch.digest}
        self.write(weights, {**judged, **dataclasses.asdict(result)})

    def write(self, weights: bytes, figures: Mapping[str, object]) -> None:
        """Writes weights and a result's numbers; deletes the checkpoint of the decay."""
        with storage(self.weights_path):
            write_atomic(self.weights_path, weights)
        write_json(self.result_path, {"key": self.key, **figures})
        self.branch_path.unlink(missing_ok=True)
