"""Trains one model and writes it as a Hugging Face folder; implements ``chipwise train``.

::

    runs/train-small/
    ├── training.json   model, text, recipe and seed
    ├── corpus/         tokenizer and encoded text
    ├── state/          checkpoints, weights and results by budget
    └── model/          the Hugging Face folder, written when the budget is spent
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chipwise.core import units
from chipwise.core.digest import digest, plain
from chipwise.core.files import read_json, storage, write_atomic, write_json
from chipwise.core.record import Record
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import InputError, SpecError, StudyError, UnitError
from chipwise.hardware import datasheet
from chipwise.model.arch.io import to_data
from chipwise.model.walk.built import require_trained
from chipwise.training.data.recipe import TEXT_TABLE_DECAY, Recipe, tokens_per_step
from chipwise.training.data.text import Corpus, DataSpec, load_corpus
from chipwise.training.data.tokenizer import LARGEST, SMALLEST, TokenStore
from chipwise.training.data.tokens import TokenData, load_tokens
from chipwise.training.loop.accelerated import (
    Execution,
    joined,
    measured_peak,
    processes,
    rank,
    train_accelerated,
)
from chipwise.training.loop.checkpoint import fingerprint
from chipwise.training.loop.evaluate import load_model, read
from chipwise.training.loop.origin import Origin, data_spec, read_origin
from chipwise.training.loop.progress import TrainingProgress
from chipwise.training.loop.trainer import TrainResult

ABOUT = "training.json"
UNKNOWN_PEAK = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of a finished training run."""

    folder: Path  # Hugging Face folder
    result: TrainResult  # bits per byte are of the validation text
    test_loss: float  # loss of the weights in ``folder`` on the test text, which no selection used
    start_loss: float | None  # loss of the given weights on the validation text; None without given weights
    kept: Literal["trained", "start"]  # which weights ``folder`` holds: those with the lower validation loss
    tokens_per_s: float | None  # of this call, over all processes; None if the training run was already finished
    mfu: float | None
    peak: str  # source of the peak that MFU refers to


def train_model(
    spec: str | Path,
    *,
    data: Sequence[str | Path] | Mapping[str, object] = ("medical-definitions",),
    steps: int | None = None,
    tokens: int | None = None,
    cpu_seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    execution: Execution | None = None,
    peak: str | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    checkpoint_every_s: float = 30.0,
) -> Trained:
    """Trains a model for a budget and writes it as a Hugging Face folder.

    If ``spec`` is a model with weights and training makes it worse, its weights are kept.

    Args:
        spec: A model that starts from random weights (a spec file, a Hugging Face config or a known name), or a folder
            with weights and tokenizer, such as a winner's folder, to train this model further.
        data: A text source, text files or globs, a run file (its ``data`` is used), or the fields of ``data``.
        steps: Budget in optimiser steps. Give exactly one of ``steps``, ``tokens`` and ``cpu_seconds``.
        tokens: Budget in training tokens.
        cpu_seconds: Budget in CPU seconds; only for one process.
        out: Folder to write. Default: ``runs/train-<name>``.
        resume: Whether to continue the training run in the folder if it was killed, or if the budget is now larger.
        execution: Device, precision and parallelism.
        peak: Peak FLOP/s of one device, for MFU: a rate, the name of a chip with a data sheet, or ``unknown``. Default:
            it is measured.
        recipe: Training recipe: batch, window and learning rates.
        seed: Random seed of the weights and of the order of the text.
        on_progress: Called about once a second.
        checkpoint_every_s: Seconds of training between checkpoints.

    Raises:
        InputError: The model, the text, the budget or an option cannot be used.
        Unsupported: The model has blocks that chipwise cannot train.
        StudyError: The folder contains a training run with different settings, or it contains this run but ``resume``
            is false.
        TrainingDiverged: The loss was no longer finite; the last good state stays in the folder.
    """
    execution, recipe = execution or Execution(), recipe or Recipe()
    if sum(value is not None for value in (steps, tokens, cpu_seconds)) != 1:
        raise InputError("give one budget: --steps, --tokens or --cpu-seconds")
    for name, value in (("steps", steps), ("tokens", tokens), ("cpu-seconds", cpu_seconds)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"--{name} must be positive, not {value}")
    origin = read_origin(spec)
    require_trained(origin.arch, task="text")
    size = origin.arch.vocab_size
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"{spec}: its vocabulary must have from {SMALLEST} to {LARGEST} tokens, not {size}")
    wanted, base = data_spec(data)
    target = Path(out) if out is not None else Path("runs") / f"train-{origin.arch.name.replace('/', '-')}"
    with joined(execution) as joint:
        recipe = dataclasses.replace(recipe, table_decay=_table_decay(target, origin, recipe))
        rate, peak_source = peak_of(peak, joint)
        joint = dataclasses.replace(joint, peak_flops_per_s=rate)
        corpus = load_corpus(wanted, base=base) if rank() == 0 else None
        if rank() == 0:
            _claim(target, _settings(origin, wanted, seed, recipe, joint), resume=resume)
        stream, tokenizer = _tokens(origin, corpus, target / "corpus")
        if tokens is not None:
            steps = math.ceil(tokens / (tokens_per_step(origin.arch, recipe) * joint.accumulate * processes()))
        last: list[TrainingProgress] = []

        def remember(update: TrainingProgress) -> None:
            last[:] = [update]
            if on_progress is not None:
                on_progress(update)

        result = train_accelerated(
            origin.arch,
            stream,
            execution=joint,
            steps=steps,
            cpu_budget_s=cpu_seconds,
            seed=seed,
            folder=target / "state",
            recipe=recipe,
            start=origin.weights,
            on_progress=remember,
            checkpoint_every_s=checkpoint_every_s,
        )
        weights, start = read(result.weights), None
        kept: Literal["trained", "start"] = "trained"
        if origin.weights is not None:
            start = stream.quality(load_model(origin.arch, origin.weights)).bits_per_byte
            if start < result.loss:
                weights, kept = dict(origin.weights), "start"
        test = stream.quality(load_model(origin.arch, weights), split="test").bits_per_byte
        if rank() == 0:
            save_pretrained(origin.arch, weights, tokenizer, target / "model")
    return Trained(
        folder=target / "model",
        result=result,
        test_loss=test,
        start_loss=start,
        kept=kept,
        tokens_per_s=last[0].tokens_per_s if last else None,
        mfu=last[0].mfu if last else None,
        peak=peak_source,
    )


def execution_of(
    device: str | None, precision: Any, accumulate: int, *, recompute: bool = False, sharing: Any = "ddp"
) -> Execution:
    """Checks the options and returns the :class:`Execution`; the default device is a GPU if there is one.

    Raises:
        InputError: An option is wrong, or this machine has no such device.
    """
    import torch

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen.split(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, not {chosen!r}")
    if chosen != "cpu" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch finds no GPU here; leave --device out, or install torch with CUDA")
    return Execution(device=chosen, precision=precision, accumulate=accumulate, recompute=recompute, sharing=sharing)


def recipe_of(batch: int | None, window: int | None, rate: float) -> Recipe:
    """The recipe with a different batch or window, and with learning rates multiplied by ``rate``.

    Raises:
        InputError: An option is wrong.
    """
    plain = Recipe()
    if not 0 < rate < math.inf:
        raise InputError(f"--rate must be positive, not {rate:g}")
    try:
        return dataclasses.replace(
            plain,
            batch_windows=plain.batch_windows if batch is None else batch,
            window_tokens=plain.window_tokens if window is None else window,
            matrix_rate=plain.matrix_rate * rate,
            table_rate=plain.table_rate * rate,
        )
    except SpecError as error:
        option = {"batch_windows": "--batch", "window_tokens": "--window"}.get(error.field or "", error.field)
        raise InputError(f"{option} {error.message}") from None


def peak_of(text: str | None, execution: Execution) -> tuple[float | None, str]:
    """Peak FLOP/s of one device for matrix products in the training run's format, and the source of this number.

    Raises:
        InputError: ``text`` is neither a rate nor the name of a chip.
        Unsupported: The chip's data sheet has no rate for the number format.
    """
    form = "bf16" if str(execution.dtype) == "torch.bfloat16" else "fp32"
    if text == UNKNOWN_PEAK:
        return None, "unknown peak"
    if text is None:
        rate = measured_peak(execution.device, execution.dtype)
        return rate, "unknown peak" if rate is None else f"measured here: the best of five large {form} products"
    try:
        return units.parse(text, "compute"), "as stated"
    except UnitError:
        if text not in datasheet.names():
            raise InputError(
                f"--peak {text!r} is neither a rate such as 989 TFLOP/s nor a chip that `chipwise devices` lists"
            ) from None
    return datasheet.load(text).peak(form), f"data sheet of {text}, {form}"


def _table_decay(target: Path, origin: Origin, recipe: Recipe) -> float:
    """Weight decay of the matrices outside the layers, such as the token table.

    A run that exists in the folder keeps its value. A new run takes the value of ``recipe`` if it starts from given
    weights, else ``TEXT_TABLE_DECAY``.
    """
    if (target / ABOUT).exists():
        held = read_json(target / ABOUT)
        return Record.of(held if isinstance(held, dict) else {}).record("recipe").get("table_decay", float, 0.0)
    return recipe.table_decay if origin.weights is not None else TEXT_TABLE_DECAY


def _settings(origin: Origin, data: DataSpec, seed: int, recipe: Recipe, execution: Execution) -> dict[str, object]:
    """All settings that determine a training run's result, except the budget; ``--resume`` requires equal settings."""
    return {
        "model": to_data(origin.arch),
        "starting weights": None if origin.weights is None else fingerprint(origin.weights),
        "text": digest(data),
        "--seed": seed,
        "--batch": recipe.batch_windows,
        "--window": recipe.window_tokens,
        "--rate": [recipe.matrix_rate, recipe.table_rate],
        "recipe": plain(recipe),
        "--accumulate, over all processes": execution.accumulate * processes(),
        "--precision": execution.precision,
    }


def _claim(target: Path, settings: dict[str, object], *, resume: bool) -> None:
    """Writes the settings to a new folder, or checks that the folder belongs to this training run."""
    path, wanted = target / ABOUT, plain(settings)
    if path.exists():
        held = read_json(path)
        held = held if isinstance(held, dict) else {}
        differs = [name for name in wanted if name not in held or held[name] != wanted[name]]
        if differs:
            shown = [
                f"{name} ({held[name]} there, {wanted[name]} now)"
                if name in held and isinstance(wanted[name], int | str | None) and name.startswith("--")
                else name
                for name in differs
                if name != "recipe" or len(differs) == 1
            ]
            raise StudyError(
                f"{target}: this folder contains a training run that differs in {', '.join(shown)}; give the "
                "same options to continue it, or choose another --out"
            )
        if not resume:
            raise StudyError(
                f"{target}: this folder already contains this training run; "
                "continue it with --resume, or choose another --out"
            )
        return
    with storage(target):
        target.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


def _tokens(origin: Origin, corpus: Corpus | None, folder: Path) -> tuple[TokenData, Path]:
    """The data set of the text in the model's tokens, and the tokenizer file; the first process creates them."""
    size = origin.arch.vocab_size
    path = folder / f"tokenizer-{size}.json"
    if corpus is not None:
        if origin.tokenizer is not None and not path.exists():
            write_atomic(path, origin.tokenizer.read_bytes())
        TokenStore(corpus, folder, [size]).prepare()
    if processes() > 1:
        from torch import distributed

        distributed.barrier()
    return load_tokens(folder / f"tokens-{size}.npz"), path
