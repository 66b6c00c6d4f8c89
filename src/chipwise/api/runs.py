"""Public functions that search, train, evaluate and shrink models, and that report on past searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chipwise.core.arguments import public
from chipwise.core.files import resumable
from chipwise.core.units import parse_field
from chipwise.deploy.export.hf import require_folder
from chipwise.deploy.runtimes import RUNTIMES, measured_instead, missing
from chipwise.design import quantize as formats
from chipwise.design.models.this_machine import is_here
from chipwise.design.phases.one_model import (
    TaskScore,
    TaskTrained,
    judge_on_task,
    other_than_text,
    run_of,
    train_on_task,
)
from chipwise.design.report.record import RunRecord, load
from chipwise.design.report.two_runs import TwoRuns, names_of
from chipwise.design.run.folder import RunFolder, holds_run, written_spec
from chipwise.design.run.progress import Status, seen, silent
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec, any_spec, load_any
from chipwise.errors import InputError, SpecError, StudyError, UnknownName, short
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.read import resolve
from chipwise.training.evaluations.folder import evaluate_folder
from chipwise.training.laws.laws import published_quality
from chipwise.training.loop.origin import check_inputs

if TYPE_CHECKING:
    from chipwise.design.quantize.gguf_run import QuantisedGguf
    from chipwise.design.shrink.shrink_model import Shrunk
    from chipwise.training.evaluations.evaluate import TaskResult
    from chipwise.training.laws.laws import ExpectedQuality
    from chipwise.training.loop.train_model import Trained


def run_folder(spec: str | Path | Mapping[str, Any] | RunSpec | StartSpec, out: str | Path | None = None) -> Path:
    """The folder of a search: ``out`` if given, else ``runs/<name>``."""
    return Path(out) if out is not None else Path("runs") / _read(spec).name


def _read(spec: str | Path | Mapping[str, Any] | RunSpec | StartSpec) -> RunSpec | StartSpec:
    """Reads a run spec from a run file or from its fields; a run spec is returned unchanged."""
    if isinstance(spec, str | Path):
        return load_any(spec)
    if isinstance(spec, Mapping):
        return any_spec({"folder": str(Path.cwd()), **spec}, file="the run's fields")
    return spec


@resumable()
@public
def search(
    spec: str | Path | Mapping[str, Any] | RunSpec | StartSpec,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    restart: bool = False,
    workers: int | None = None,
    train_on: str | None = None,
    storage: str | None = None,
    carbon: str | None = None,
    on_progress: Callable[[Status], None] | None = None,
) -> RunRecord:
    """Runs a search to its end and returns its record.

    Args:
        spec: A run file, its fields as a dict, or a :class:`RunSpec`. With ``start_from``, the run shrinks the model
            that this field names.
        out: The run's folder. Default: ``runs/<name>``.
        resume: Continue the run in the folder. Limits, budget and seed may differ from those of the earlier call.
        restart: Move the existing run aside and start again.
        workers: Number of parallel training runs. Default: as in the file.
        train_on: Where to train, overriding the file: local, cuda, cuda:0,1, ray, ray://head:10001 or jobs.
        storage: Where trials are stored: ``postgresql://…``, ``sqlite:///…`` or a journal's path; by default the run's
            folder.
        carbon: Carbon intensity of the electricity grid, such as ``350 g/kWh``, from which the search's emissions are
            computed. Default: as in the file, else unknown.
        on_progress: Called with the search's status whenever it changes. By default, a status line is shown in a
            terminal or notebook; ``lambda status: None`` turns it off.

    If no design is known to meet every limit, the winner is the one that comes closest, and the record says so
    (:func:`chipwise.design.report.unmet.unmet`).

    Raises:
        SpecError: The run file is wrong, or differs from the resumed run in more than limits, budget and seed. The
            message names file and field.
        Infeasible: No candidate is predicted to meet the constraints (then nothing is trained), or every training
            run failed.
        StudyError: The folder cannot be used.
    """
    import dataclasses

    if resume and restart:
        raise InputError("choose one of resume and restart")
    wanted = _read(spec)
    if isinstance(wanted, StartSpec) and storage is not None:
        raise InputError("--storage stores trials, but a run that starts from a model has none; leave it out")
    if workers is not None:
        try:
            wanted = dataclasses.replace(wanted, budget=dataclasses.replace(wanted.budget, workers=workers))
        except SpecError as error:
            raise SpecError(error.message, field="--workers") from None
    if carbon is not None:
        wanted = dataclasses.replace(wanted, carbon=carbon)
    if train_on is not None:
        wanted = _trained_on(wanted, train_on)
    from chipwise.design.phases.law_run import LawRun
    from chipwise.design.phases.pipeline import Search
    from chipwise.design.shrink.cut_run import Cutting

    file = str(spec) if isinstance(spec, str | Path) else None
    observer = seen() if on_progress is None else on_progress
    if wanted.target.sheet is None and wanted.target.runtime not in RUNTIMES:
        known = measured_instead(wanted.target.runtime)
        raise SpecError(f"unknown runtime {short(wanted.target.runtime)}; {known}", file=file, field="target.runtime")
    if wanted.target.local and (lack := missing(wanted.target.runtime)):
        raise SpecError(f"{wanted.target.runtime} cannot be measured here: {lack}", file=file, field="target.runtime")
    try:
        with RunFolder(run_folder(wanted, out), wanted, resume=resume, restart=restart, storage=storage) as folder:
            if isinstance(wanted, StartSpec):
                return Cutting(wanted, folder, observer).run()
            if wanted.quality.chosen == "law":
                return LawRun(wanted, folder, observer).run()
            return Search(wanted, folder, observer).run()
    except SpecError as error:
        raise error.inside(file=file) from None


def _trained_on(spec: RunSpec | StartSpec, on: str) -> RunSpec:
    """Returns a copy of the run with a different trainer, but with the same price and precision."""
    import dataclasses

    if isinstance(spec, StartSpec):
        raise InputError("--train-on: a run that starts from a model trains on this machine's cores; leave it out")
    try:
        return dataclasses.replace(spec, train=dataclasses.replace(spec.train, on=on, device=None))
    except SpecError as error:
        field = error.field if error.field and error.field.startswith(("budget", "train.price")) else "--train-on"
        raise SpecError(error.message, field=field) from None


@resumable()
@public
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
    on_progress: Callable[..., None] | None = None,
) -> Trained | TaskTrained:
    """Trains a model for a budget of steps, tokens or CPU seconds and writes a Hugging Face folder.

    If ``data`` is a run file of a task other than text, the model is trained on the task's data, exported, and
    evaluated on data that were held out.

    Args:
        spec: A spec file, a Hugging Face config, a known model's name, or a folder with weights from which training
            continues.
        data: A text source, text files, a run file (its ``data`` is used), or the fields of ``data``.
        steps: Optimiser steps. Exactly one of the three budgets must be given.
        tokens: Training tokens.
        cpu_seconds: CPU seconds of training, in one process without a GPU.
        out: The output folder; ``runs/train-<name>`` by default.
        resume: Continue the training run in the output folder.
        device: ``cpu`` or ``cuda``; by default a GPU if there is one.
        precision: ``bf16`` or ``fp32`` matrix products; by default the faster one.
        accumulate: Batches whose gradients are accumulated per step.
        checkpoint_activations: Recompute activations instead of keeping them.
        sharing: ``ddp`` or ``fsdp``, when started by ``torchrun``.
        batch: Windows (sequences) per batch and process.
        window: Tokens per window.
        rate: Multiplier of the recipe's learning rates.
        peak: The peak relative to which MFU is computed: a rate, a chip's name, or ``unknown``. Default: a measured
            peak.
        seed: Seed of the weights and of the order of the text.
        on_progress: Called about once a second with a progress update.

    Raises:
        InputError: The model, the text, the budget or an option is wrong.
        StudyError: The folder holds a different training run, or it holds this one and ``resume`` is not given.
        TrainingDiverged: The loss is no longer finite; the last good state is kept.
    """
    if (run := other_than_text(data)) is not None:
        text_alone = {"accumulate": accumulate != 1, "checkpoint_activations": checkpoint_activations}
        text_alone |= {"sharing": sharing != "ddp", "window": window is not None, "rate": rate != 1.0}
        text_alone |= {"peak": peak is not None, "precision": precision is not None}
        if any(text_alone.values()):
            named = ", ".join(name for name, given in text_alone.items() if given)
            raise InputError(f"{named}: only applies to text models; {run.task} models have a fixed recipe")
        return train_on_task(
            spec, run, steps=steps, tokens=tokens, cpu_seconds=cpu_seconds, out=out, resume=resume, device=device,
            seed=seed, batch=batch, on_progress=on_progress or (lambda update: None),
        )  # fmt: skip

    check_inputs(spec, data)
    from chipwise.training.loop.train_model import execution_of, recipe_of, train_model

    return train_model(
        spec,
        data=data,
        steps=steps,
        tokens=tokens,
        cpu_seconds=cpu_seconds,
        out=out,
        resume=resume,
        execution=execution_of(device, precision, accumulate, recompute=checkpoint_activations, sharing=sharing),
        recipe=recipe_of(batch, window, rate),
        peak=peak,
        seed=seed,
        on_progress=on_progress,
    )


@public
def evaluate(
    model: str | Path,
    task: str | Path,
    *,
    kind: str | None = None,
    method: str | None = None,
    with_baseline: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[TaskResult, TaskResult | None] | tuple[TaskScore, None]:
    """Evaluates the model in a folder on a task; returns the results of the model and of the TF-IDF baseline.

    If ``task`` is a run file of a task other than text, the folder's exported graph is evaluated on that task's test
    data.

    Args:
        model: A folder with weights and tokenizer, such as a winner's.
        task: ``organ-system``, ``chapters``, a CSV or JSON Lines file, or a run file of a task other than text.
        kind: ``classification`` or ``regression``, if it is not clear from the file's labels.
        method: ``tune`` (trains a copy of the model on the task) or ``probe``. Default: the classifier that a winner
            includes for this task, else ``tune``.
        with_baseline: Whether to evaluate the TF-IDF baseline too.
        on_progress: Called with the amount of finished work and the total amount.

    Raises:
        InputError: The model or the task cannot be used.
        MissingExtra: A package that the task or the baseline needs is not installed.
    """
    if (run := other_than_text(task)) is not None:
        if kind is not None or method is not None:
            raise InputError("`kind` and `method` apply only to text models; leave them out")
        return judge_on_task(model, run), None

    return evaluate_folder(model, task, kind=kind, method=method, with_baseline=with_baseline, on_progress=on_progress)


@resumable()
@public
def shrink(
    folder: str | Path,
    *,
    latency: str | float | None = "60 %",
    memory: str | float | None = None,
    method: Literal["exact", "uniform", "truncate"] = "exact",
    data: Sequence[str | Path] | Mapping[str, Any] = ("medical-definitions",),
    prompt: int = 32,
    new: int = 16,
    weights: str = "fp32",
    rounding: str = "auto",
    cpu_seconds: float | None = None,
    steps: int = 300,
    rate: float = 5e-4,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    runtime: str | None = None,
    tpot: str | None = None,
    to: str | None = None,
    dry_run: bool = False,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Shrunk | QuantisedGguf:
    """Prunes a pretrained model until it meets limits, and restores its quality by distillation (healing).

    The result is exported and measured next to the original. If a ``device`` is given, times are predicted for it
    instead of measured. A ``.gguf`` file is not pruned, but only stored in narrower number formats, as by
    :func:`quantize`. The same applies to a folder if ``tpot`` or ``to="gguf"`` is given.

    Args:
        folder: A Hugging Face folder of a BERT-style encoder or a Llama-style decoder with its tokenizer.json, or of an
            image classifier (ViT); or the winner of a search on a task whose models need only one pass.
        latency: Limit on the latency of a request on the device: a share of the original's latency (``60 %``) or a time
            (``3 ms``).
        memory: Limit on the size of the weights: a share of the original's size, or a size (``40 MB``).
        method: ``exact`` (scores blocks one by one and solves an integer programme), or a baseline: ``uniform`` (the
            same sizes in every layer) or ``truncate`` (the first layers).
        data: The data for scoring and healing: a text source, text files, a run file, or the fields of ``data``.
            Default for a winner: the data of its run.
        prompt: Tokens of a request's text or prompt.
        new: Tokens that a decoder generates per request.
        weights: Format of the result's weights: fp32, int8 or int4.
        rounding: How int8 and int4 weights are rounded: ``nearest``, ``searched``, ``gptq``, ``learned``, or ``auto``
            for the method with the lowest loss on held-out data.
        cpu_seconds: CPU seconds for ``learned``. Default: 60. If given, ``auto`` also tries ``learned``.
        steps: Steps of healing by distillation; 0 for none.
        rate: Peak learning rate of healing.
        out: Output folder; ``runs/shrink-<name>`` by default.
        resume: Continue the run in the output folder.
        device: The chip to which the latency limit applies; times are then predicted. Default: this machine, measured.
        runtime: Runtime on that chip. Default: its usual one.
        tpot: Limit on a decode step of the GGUF file, such as ``<= 8 ms``.
        to: ``gguf`` to write a GGUF file with a format chosen for each matrix; ``memory`` is then a size such as
            ``<= 400 MB``.
        dry_run: For GGUF: choose formats and predict their cost, but write no file.
        seed: Random seed.
        on_progress: Called with the stage, the finished steps and the total steps.

    Raises:
        InputError: The model, a limit or the text is wrong, or no pruned model meets the limits.
        Unsupported: The model has blocks that cannot be built or pruned here.
        StudyError: The folder holds a different run, or this one and ``resume`` is not given.
    """
    if to is not None or tpot is not None or Path(folder).suffix == ".gguf":
        if to not in (None, "gguf"):
            raise UnknownName("form", to, ["gguf"])
        formats.require_packages()
        with formats.texts_of(data) as texts:
            return formats.quantize_gguf(
                Path(folder), texts, tpot=tpot, memory=None if memory is None else str(memory), context=None,
                weights=None, device=device, dry_run=dry_run, out=None if out is None else Path(out), seed=seed,
                resume=resume, on_progress=on_progress,
            )  # fmt: skip
    if dry_run:
        raise SpecError("only applies to GGUF files; give `to` or `tpot` as well", field="dry_run")
    require_folder(Path(folder), text=run_of(folder, data) is None)
    there = None if device is None or is_here(device) else datasheet.load(device).name
    from chipwise.design.shrink.distillation import Healing
    from chipwise.design.shrink.shrink_model import ShrinkRequest, shrink_model

    request = ShrinkRequest(
        latency=latency,
        memory=memory,
        method=method,
        data=data,
        tokens=prompt,
        new_tokens=new,
        weights=weights,
        rounding=rounding,
        cpu_s=cpu_seconds,
        healing=Healing(steps=steps, rate=rate),
        device=there,
        runtime=runtime,
        seed=seed,
    )
    return shrink_model(folder, request, out=out, resume=resume, on_progress=on_progress)


@resumable()
@public
def report(folder: str | Path) -> RunRecord:
    """Writes a run's report.html, card.md and trials.csv again, from the data in the run's folder.

    Raises:
        StudyError: The folder holds no run.
    """
    path = Path(folder)
    held = written_spec(path)
    begun = any((path / name).exists() for name in ("study.journal", "about.json"))
    if held is None or not (begun or "storage" in held):
        raise StudyError(
            f"{path}: this folder holds no run (no spec.json or no study.journal); give a folder such as runs/clinic"
        )
    spec = any_spec(held.get("spec"), file=str(path / "spec.json"))
    from chipwise.design.phases.pipeline import Search
    from chipwise.design.shrink.cut_run import Cutting

    with RunFolder(path, spec, resume=True) as opened:
        if isinstance(spec, StartSpec):
            return Cutting(spec, opened, silent).report()
        return Search(spec, opened, silent).report()


@public
def compare_runs(first: str | Path, second: str | Path) -> TwoRuns:
    """Compares two runs of one task: limits, predictions, measurements, winners and Pareto fronts.

    For an unfinished run, only the results so far are compared.

    Raises:
        StudyError: A folder holds no run.
        InputError: The two folders are the same run, or runs of different tasks.
    """
    folders = [Path(first), Path(second)]
    if folders[0].resolve() == folders[1].resolve():
        raise InputError(f"{first}: name two different runs")
    records = []
    for folder in folders:
        file = folder / "record.json"
        records.append(load(file) if holds_run(folder) and file.exists() else report(folder))
    return TwoRuns(names=names_of(folders), records=(records[0], records[1]))


@public
def quality(model: str | Path | ArchSpec, *, tokens: float | str) -> ExpectedQuality:
    """Predicts the loss after training ``model``, with its interval, by a published scaling law.

    Args:
        model: See :func:`estimate`.
        tokens: Training tokens: a number, or text such as ``2T``. The published law assumes one pass over the text.

    Raises:
        InputError: The model is too small or the text too short for the published law.
        Unsupported: The model does not predict next tokens.
    """
    arch = model if isinstance(model, ArchSpec) else resolve(model)
    return published_quality(arch, tokens=parse_field(tokens, "count", "tokens"))
