"""Trains or evaluates one model on the data of a run file, without a search, for any task except text.

Text has separate loops (``training/loop/train_model.py``, ``training/evaluations/folder.py``) that support tokenizers
and GPUs.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.digest import plain
from chipwise.core.fields import whole_number
from chipwise.core.files import read_yaml, storage, write_json
from chipwise.core.record import Record
from chipwise.core.statistics import Z95
from chipwise.design.run.folder import PROMISES, holds_run, won_by
from chipwise.design.run.spec import RunSpec, load_run
from chipwise.design.run.winner import read_winner
from chipwise.errors import InputError, SpecError, StudyError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import to_data
from chipwise.model.published.families import without_folder
from chipwise.model.walk.built import require_trained
from chipwise.training.loop.origin import has_weights, resolve_untrained
from chipwise.training.loop.sensitivity import layer_losses
from chipwise.training.loop.worker import TrainJob
from chipwise.training.tasks.protocol import Exported, Losses, TaskData

if TYPE_CHECKING:
    from chipwise.training.loop.progress import Update

FORMAT = "fp32"  # weight format of the exported model


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """An exported model's score on one split of a task's data, in the task's metric."""

    task: str
    metric: str  # display name, such as accuracy
    split: str  # validation or test
    value: float  # as displayed: an accuracy, not an error rate
    low: float | None  # ends of the 95 % interval over entries; None for a single entry
    high: float | None
    entries: int  # number of independent entries: images, speakers, series
    shown: str  # value and interval as text

    @classmethod
    def of(cls, run: RunSpec, losses: Losses, split: str) -> TaskScore:
        """The score that follows from the losses of the split's entries."""
        metric, error = run.task_settings.metric, losses.std_error
        most = 1.0 if metric.unit == "share" else math.inf
        off = 0.0 if error is None else Z95 * error
        ends = [min(max(losses.loss + each, 0.0), most) for each in (-off, off)]
        ends.sort(key=metric.shown)
        low, high = map(metric.shown, ends)
        span = " to ".join(map(metric.text, ends))
        return cls(
            task=run.task,
            metric=metric.title,
            split=split,
            value=metric.shown(losses.loss),
            low=None if error is None else low,
            high=None if error is None else high,
            entries=len(losses.values),
            shown=metric.text(losses.loss) + ("" if error is None else f" ({span})"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrained:
    """A model trained on a task's data."""

    folder: Path  # holds the model in its ecosystem's format, and ``model.onnx``
    steps: int
    tokens: int
    cpu_s: float
    validation: TaskScore
    test: TaskScore


def other_than_text(data: object) -> RunSpec | None:
    """The run spec if ``data`` is a run file whose task is not text; else None."""
    given = data[0] if isinstance(data, list | tuple) and len(data) == 1 else data
    if not isinstance(given, str | Path) or Path(given).suffix not in (".yaml", ".yml") or not Path(given).is_file():
        return None
    held = read_yaml(given)
    if not isinstance(held, Mapping) or held.get("task", "text") == "text":
        return None
    return load_run(given)


def run_of(folder: str | Path, data: object) -> RunSpec | None:
    """The run whose data are used to prune a model: the run file ``data``, else the run whose winner is in ``folder``.

    Runs whose task is text are ignored. Without any other run, the result is None and the model is pruned with text.
    """
    if (named := other_than_text(data)) is not None:
        return named
    found = won_by(folder)
    return None if found is None or found.task == "text" else found


def train_on_task(
    model: str | Path,
    run: RunSpec,
    *,
    steps: int | None,
    tokens: int | None,
    cpu_seconds: float | None,
    out: str | Path | None,
    resume: bool,
    device: str | None,
    seed: int,
    batch: int | None = None,
    on_progress: Callable[[Update], None] = lambda update: None,
) -> TaskTrained:
    """Trains ``model`` on the data of ``run``; writes it in its ecosystem's format and as ``model.onnx``, with scores.

    Raises:
        InputError: The model does not fit the task's data, or not exactly one budget is given.
        StudyError: The folder already holds a training run and ``resume`` is not given.
        Unsupported: The model has blocks that cannot be built.
    """
    from chipwise.training.loop.evaluate import read

    arch, start = _model_of(model)
    require_trained(arch, task=run.task)
    target = Path(out) if out is not None else Path("runs") / f"train-{arch.name.replace('/', '-')}"
    if (target / "state").exists() and not resume:
        raise StudyError(f"{target}: already holds a training run; continue it with --resume, or give another --out")
    data = opened(run, target / "corpus", arch)
    recipe = {**data.recipe, **({} if batch is None else {"batch_windows": whole_number("batch", batch)})}
    budgets = {"steps": steps, "tokens": tokens, "cpu_seconds": cpu_seconds}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) != 1 or not 0 < next(iter(given.values())) < math.inf:
        raise InputError("give one budget above 0: --steps, --tokens or --cpu-seconds")
    if tokens is not None:
        steps = math.ceil(tokens / data.step_tokens(arch))
    file = data.data(arch)
    job = TrainJob(
        arch=arch,
        tokens=file.path,
        dataset=file.kind,
        folder=str(target / "state"),
        steps=steps,
        cpu_budget_s=cpu_seconds,
        seed=seed,
        recipe=recipe,
        device=device if device not in (None, "cpu") else None,
        start=start,
    )
    result = Record.of(job.run(on_progress))
    item = Exported(
        design=Design(arch=arch, weights=FORMAT), weights=read(Path(result.get("weights", str))), folder=target
    )
    shipped = target / "model"
    with storage(shipped):
        shipped.mkdir(parents=True, exist_ok=True)
    data.ship(item, shipped, {})
    with storage(shipped):
        from chipwise.deploy.export.onnx import export

        export(item.design, item.weights, shipped / "model.onnx")
    scores = {split: TaskScore.of(run, data.losses(item, split=split), split) for split in ("validation", "test")}
    write_json(shipped / PROMISES, promises_of_model(run, item.design, scores["test"].value))
    return TaskTrained(
        folder=shipped,
        steps=result.get("steps", int),
        tokens=result.get("tokens", int),
        cpu_s=result.get("cpu_s", float),
        validation=scores["validation"],
        test=scores["test"],
    )


def judge_on_task(model: str | Path, run: RunSpec) -> TaskScore:
    """Exports the model in a folder with weights, such as a winner's, and scores it on the test data of ``run``.

    Args:
        model: The model's folder.
        run: The run file's spec.

    Raises:
        InputError: The folder has no weights, or its model does not fit the data.
    """
    folder = _folder_of(model)
    from chipwise.deploy.export.hf import load_pretrained
    from chipwise.deploy.export.onnx import export

    found, weights = load_pretrained(folder)
    winner = read_winner(folder)
    design = Design(arch=found, weights=FORMAT) if winner is None else winner.design
    data = opened(run, data_of(folder, run), design.arch)
    with tempfile.TemporaryDirectory() as room:
        item = Exported(design=design, weights=weights, folder=Path(room))
        export(design, weights, Path(room) / "model.onnx")
        return TaskScore.of(run, data.losses(item, split="test"), "test")


def layer_losses_on_task(
    model: str | Path,
    run: RunSpec,
    weight_format: str,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """For each layer, how much the validation loss on ``run`` rises if only this layer is in ``weight_format``.

    Raises:
        InputError: The folder has no weights, or its model does not fit the data.
        Unsupported: Weights cannot be rounded to ``weight_format``.
    """
    folder = _folder_of(model)
    from chipwise.deploy.export.hf import load_pretrained
    from chipwise.training.loop.evaluate import load_model

    arch, weights = load_pretrained(folder)
    data = opened(run, data_of(folder, run), arch).data(arch).load()
    data.require_fit(arch)
    return layer_losses(
        load_model(arch, weights), weight_format, lambda changed: data.judge(changed).loss, on_progress=on_progress
    )


def data_of(folder: Path, run: RunSpec) -> Path:
    """Folder of the task's data: inside the model's run or training folder if there is one, else a separate folder."""
    parent = Path(os.path.realpath(folder)).parent
    return parent / "corpus" if holds_run(parent) or (parent / "state").is_dir() else Path("runs") / f"data-{run.name}"


def _folder_of(model: str | Path) -> Path:
    """The folder of a model with weights.

    Raises:
        InputError: The folder does not exist or has no weights.
    """
    folder = Path(model)
    if not has_weights(folder):
        why = without_folder(str(model))
        raise InputError(f"{model}: {why}; give a folder with weights, such as a winner's or that of `chipwise train`")
    return folder


def _model_of(model: str | Path) -> tuple[ArchSpec, str | None]:
    """The architecture, and a file of weights under their PyTorch names; the file is None for an untrained model."""
    folder = Path(model)
    if not has_weights(folder):
        return resolve_untrained(model), None
    from safetensors.numpy import save_file

    from chipwise.deploy.export.hf import load_pretrained

    arch, weights = load_pretrained(folder)
    path = Path(tempfile.mkdtemp(prefix="chipwise-start-")) / "start.safetensors"
    save_file(dict(weights), str(path))
    return arch, str(path)


def opened(run: RunSpec, folder: Path, arch: ArchSpec) -> TaskData:
    """Opens the task's data, and prepares it if needed, after checking that ``arch`` can read it."""
    if unlike := run.space.kind.other_input(arch, run=run.name):
        raise SpecError(unlike, field=f"space.{run.space.part}")
    data = run.task_settings.open(run.data, base=Path(run.folder), folder=folder, space=run.space)
    data.prepare()
    return data


def promises_of_model(run: RunSpec, design: Design, value: float) -> dict[str, object]:
    """Contents of ``chipwise.json`` for a model without a search; other commands read design and task from it."""
    return {
        "schema": "chipwise.winner/1",
        "task": run.task,
        "arch": to_data(design.arch),
        "weights": design.weights,
        "target": {"threads": 1},
        "workload": plain(run.workload),
        "constraints": {},
        "promised": {},
        "measured": None,
        run.task_settings.metric.name: value,
    }
