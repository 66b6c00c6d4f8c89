"""Searches, trainings and what they leave behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.core.errors import InputError, SpecError, StudyError
from chipwise.core.files import read_json
from chipwise.core.units import parse
from chipwise.profile.backends import RUNTIMES
from chipwise.reporting.record import RunRecord
from chipwise.run.folder import RunFolder
from chipwise.run.progress import Observer, silent
from chipwise.run.spec import RunSpec
from chipwise.run.start_spec import StartSpec, any_spec, load_any
from chipwise.spec import ArchSpec
from chipwise.spec.hf import resolve

if TYPE_CHECKING:
    from chipwise.optim.laws import ExpectedQuality
    from chipwise.training.command import Trained
    from chipwise.training.extended import Sign
    from chipwise.training.tasks import TaskResult


def data_folder() -> Path:
    """Where chipwise keeps what outlives a run: ``CHIPWISE_HOME``, or the user's data folder."""
    home = os.environ.get("CHIPWISE_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "chipwise"


def run_folder(spec: str | Path | RunSpec | StartSpec, out: str | Path | None = None) -> Path:
    """The folder of a search: ``out``, or ``runs/<name>``."""
    if out is not None:
        return Path(out)
    name = load_any(spec).name if isinstance(spec, str | Path) else spec.name
    return Path("runs") / name


def search(
    spec: str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    restart: bool = False,
    workers: int | None = None,
    storage: str | None = None,
    observer: Observer = silent,
) -> RunRecord:
    """Searches what the YAML file ``spec`` asks for, or cuts the model that it starts from; the finished run's record.

    Args:
        spec: The search's file.
        out: The run's folder; ``runs/<name>`` unless given.
        resume: Go on with the run that the folder holds.
        restart: Put that run aside and begin anew.
        workers: Trainings side by side; the file's number unless given.
        storage: Where trials are kept, ``postgresql://…``, ``sqlite:///…`` or a journal's path; in the folder unless
            given.
        observer: Told of every change.

    Raises:
        SpecError: The file is wrong; file and field are named.
        Infeasible: No candidate can meet the constraints.
        StudyError: The folder cannot be used.
    """
    import dataclasses

    from chipwise.pipeline.pipeline import Search
    from chipwise.shrinking.cutting import Cutting

    wanted = load_any(spec)
    if isinstance(wanted, StartSpec) and storage is not None:
        raise InputError("--storage keeps trials, and a run that starts from a model has none; leave it out")
    if workers is not None:
        try:
            wanted = dataclasses.replace(wanted, budget=dataclasses.replace(wanted.budget, workers=workers))
        except SpecError as error:
            raise SpecError(error.message, field="--workers") from None
    if wanted.target.runtime not in RUNTIMES:
        RUNTIMES.load(wanted.target.runtime)  # raises UnknownName
    with RunFolder(run_folder(wanted, out), wanted, resume=resume, restart=restart, storage=storage) as folder:
        if isinstance(wanted, StartSpec):
            return Cutting(wanted, folder, observer).run()
        return Search(wanted, folder, observer).run()


def train(
    spec: str | Path,
    *,
    data: Sequence[str | Path] | Mapping[str, Any] = ("medical-definitions",),
    steps: int | None = None,
    tokens: int | None = None,
    cpu_seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    precision: str | None = None,
    accumulate: int = 1,
    checkpoint_activations: bool = False,
    sharing: str = "ddp",
    batch: int | None = None,
    window: int | None = None,
    rate: float = 1.0,
    peak: str | None = None,
    seed: int = 0,
    progress: Callable[[Sign], None] | None = None,
) -> Trained:
    """Trains a model for a budget of steps, tokens or CPU seconds and writes a Hugging Face folder.

    Args:
        spec: A spec file, a Hugging Face config or known name, or a folder with weights to go on from.
        data: A text source, text files, a run file (its ``data``), or the fields of such.
        steps: Steps of the optimiser; exactly one of the three budgets.
        tokens: Tokens to learn from.
        cpu_seconds: CPU seconds of training, on one process without a GPU.
        out: The folder; ``runs/train-<name>`` unless given.
        resume: Go on with the training that the folder holds.
        device: ``cpu`` or ``cuda``; a GPU where there is one.
        precision: ``bf16`` or ``fp32`` of matrix products; the faster one unless given.
        accumulate: Batches whose gradients make one step.
        checkpoint_activations: Compute activations again instead of keeping them.
        sharing: Under ``torchrun``, ``ddp`` or ``fsdp``.
        batch: Windows in a batch of one process.
        window: Tokens in a window.
        rate: Share of the recipe's learning rates.
        peak: Peak for MFU: a rate, a chip's name, or ``unknown``; measured unless given.
        seed: Of weights and order of the text.
        progress: Told about once a second.

    Raises:
        InputError: The model, the text, the budget or an option is wrong.
        StudyError: The folder holds another training, or one and ``resume`` is not given.
        TrainingDiverged: The loss was no longer finite; the last good state is kept.
    """
    from chipwise.training.command import means_of, recipe_of, train_model

    return train_model(
        spec,
        data=data,
        steps=steps,
        tokens=tokens,
        cpu_seconds=cpu_seconds,
        out=out,
        resume=resume,
        means=means_of(device, precision, accumulate, recompute=checkpoint_activations, sharing=sharing),
        recipe=recipe_of(batch, window, rate),
        peak=peak,
        seed=seed,
        progress=progress,
    )


def evaluate(
    model: str | Path,
    task: str | Path,
    *,
    kind: str | None = None,
    method: str | None = None,
    with_baseline: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[TaskResult, TaskResult | None]:
    """How well a model's folder does on a task, and what a bag of words reaches on the same items.

    Args:
        model: A folder with weights and tokenizer, such as a winner's.
        task: ``organ-system``, ``chapters``, or a CSV or JSON Lines file.
        kind: What a file's labels are, where that is not plain: ``classification`` or ``regression``.
        method: ``tune`` (a copy of the model is trained on the task) or ``probe``. Unless given, the classifier answers
            that a winner ships for these very items, else ``tune``.
        with_baseline: Whether the bag of words is asked too.
        progress: Told how much of how much is done.

    Raises:
        InputError: The model or the task cannot be used.
        MissingExtra: A package that the task or the baseline needs is not installed.
    """
    from chipwise.training.command import evaluate_folder

    return evaluate_folder(model, task, kind=kind, method=method, with_baseline=with_baseline, progress=progress)


def report(folder: str | Path) -> RunRecord:
    """Draws report.html, card.md and trials.csv of a run again, from what its folder holds.

    Raises:
        StudyError: The folder holds no run.
    """
    from chipwise.pipeline.pipeline import Search
    from chipwise.shrinking.cutting import Cutting

    path = Path(folder)
    held = read_json(path / "spec.json") if (path / "spec.json").exists() else None
    begun = any((path / name).exists() for name in ("study.journal", "about.json"))
    if not isinstance(held, dict) or not (begun or "storage" in held):
        raise StudyError(
            f"{path}: this folder holds no run (no spec.json and study.journal); give a folder such as runs/clinic"
        )
    spec = any_spec(held.get("spec"), file=str(path / "spec.json"))
    with RunFolder(path, spec, resume=True) as opened:
        if isinstance(spec, StartSpec):
            return Cutting(spec, opened, silent).report()
        return Search(spec, opened, silent).report()


def quality(model: str | ArchSpec, *, tokens: float | str, run: str | Path | None = None) -> ExpectedQuality:
    """What a training of ``model`` is expected to reach, with its interval: by the published law, or by a run's own.

    Args:
        model: As in :func:`estimate`.
        tokens: Of training: a number, or words such as ``2T``. The published law counts one pass over the text.
        run: The folder of a search: its trainings' law, in bits per byte of its text, instead of the published one.

    Raises:
        InputError: Too small a model or too little text for the published law.
        Unsupported: The model does not predict next tokens.
        StudyError: ``run`` holds too few trainings.
    """
    arch = resolve(model) if isinstance(model, str) else model
    count = parse(tokens, "count")
    if run is not None:
        from chipwise.pipeline.fitted import fitted_quality

        return fitted_quality(arch, tokens=count, run=run)
    from chipwise.optim.laws import published_quality

    return published_quality(arch, tokens=count)
