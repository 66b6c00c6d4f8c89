"""The façade: everything that the command line and a notebook need, one function each."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.blocks.lowering import lower
from chipwise.core.csvfile import write_rows
from chipwise.core.digest import plain
from chipwise.core.errors import DoesNotFit, InputError, MissingExtra, SpecError, StudyError, UnknownName, Unsupported
from chipwise.core.files import read_json
from chipwise.core.units import parse
from chipwise.cost.estimate import estimate as calibrated_estimate
from chipwise.cost.model import CostEstimate
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.device import MachineProfile
from chipwise.ops import Phase, Workload
from chipwise.predict.learn import Learned
from chipwise.predict.validation.score import LeaveOut, Score
from chipwise.profile.backends import RUNTIMES
from chipwise.profile.efficiency import Efficiency, efficiency
from chipwise.profile.kept import keep_thermal, kept_profile
from chipwise.profile.kept import profile_path as profile_path
from chipwise.profile.measurement import Measurement
from chipwise.profile.sustained import Sustained
from chipwise.report.record import RunRecord
from chipwise.run.folder import PROMISES, RunFolder
from chipwise.run.progress import Observer, silent
from chipwise.run.spec import RunSpec, load_run, run_spec
from chipwise.serve.training import TrainingEstimate
from chipwise.space.constraints import Constraint, parse_constraints
from chipwise.spec import ArchSpec, Design
from chipwise.spec import io as spec_io
from chipwise.spec.encoder import is_encoder
from chipwise.spec.hf import resolve

if TYPE_CHECKING:
    from chipwise.explain.answer import Explanation
    from chipwise.explain.compare import Comparison
    from chipwise.explain.measured import MeasuredExplanation
    from chipwise.search.laws import ExpectedQuality
    from chipwise.train.command import Trained
    from chipwise.train.extended import Sign
    from chipwise.train.tasks import TaskResult


def data_folder() -> Path:
    """Where chipwise keeps what outlives a run: ``CHIPWISE_HOME``, or the user's data folder."""
    home = os.environ.get("CHIPWISE_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "chipwise"


def run_folder(spec: str | Path | RunSpec, out: str | Path | None = None) -> Path:
    """The folder of a search: ``out``, or ``runs/<name>``."""
    if out is not None:
        return Path(out)
    name = spec.name if isinstance(spec, RunSpec) else load_run(spec).name
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
    """Searches what the YAML file ``spec`` asks for; returns the record of the finished run.

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

    from chipwise.run.search import Search

    wanted = load_run(spec)
    if workers is not None:
        try:
            wanted = dataclasses.replace(wanted, budget=dataclasses.replace(wanted.budget, workers=workers))
        except SpecError as error:
            raise error.inside(field="--workers") from None
    if wanted.target.runtime not in RUNTIMES.names():
        RUNTIMES.load(wanted.target.runtime)  # raises UnknownName
    with RunFolder(run_folder(wanted, out), wanted, resume=resume, restart=restart, storage=storage) as folder:
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
    from chipwise.train.command import means_of, recipe_of, train_model

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
    from chipwise.train.command import evaluate_folder

    return evaluate_folder(model, task, kind=kind, method=method, with_baseline=with_baseline, progress=progress)


def report(folder: str | Path) -> RunRecord:
    """Draws report.html, card.md and trials.csv of a run again, from its study.

    Raises:
        StudyError: The folder holds no run.
    """
    from chipwise.run.search import Search

    path = Path(folder)
    held = read_json(path / "spec.json") if (path / "spec.json").exists() else None
    if not isinstance(held, dict) or not ((path / "study.journal").exists() or "storage" in held):
        raise StudyError(
            f"{path}: this folder holds no run (no spec.json and study.journal); give a folder such as runs/clinic"
        )
    spec = run_spec(held.get("spec"), file=str(path / "spec.json"))
    with RunFolder(path, spec, resume=True) as opened:
        return Search(spec, opened, silent).report()


def estimate(
    model: str | ArchSpec,
    *,
    device: str | DeviceProfile = "h100-sxm",
    runtime: str = "vllm",
    prompt: int = 1024,
    new: int = 128,
    batch: int = 1,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
) -> CostEstimate:
    """Predicted cost of serving ``model`` on a device that need not be here, kernel by kernel.

    Args:
        model: A Hugging Face id that is bundled, a ``config.json`` or its folder, a spec file, or a spec.
        device: A data sheet's name, alias or file.
        runtime: Whose kernels, fusion and host overhead.
        prompt: Prompt tokens of a request.
        new: New tokens of a request.
        batch: Requests in flight, over all replicas.
        weights: Format of the matrices; that of the checkpoint, else bf16.
        kv: Format of the KV cache; that of the activations.
        tp: Devices that share every matrix.
        pp: Pipeline stages.
        ep: Groups that a mixture's experts are dealt out to.
        dp: Replicas of attention.

    Raises:
        UnknownName: A name that is not known; the nearest are offered.
        SpecError: A plan that does not divide the model.
        Unsupported: The device has no rate for a format.
        DoesNotFit: Too little memory; by how much, and what would fit.
    """
    from chipwise.serve.answer import answer
    from chipwise.serve.request import Request

    return answer(
        Request(
            model=model, device=device, runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp,
            batch=batch, prompt_tokens=prompt, new_tokens=new,
        )
    )  # fmt: skip


def estimate_training(
    model: str | ArchSpec,
    *,
    device: str | DeviceProfile = "h100-sxm",
    runtime: str = "torch-compile",
    tokens: int = 1024,
    batch: int = 1,
    microbatches: int = 1,
    checkpoint: bool = False,
    weights: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
) -> TrainingEstimate:
    """Predicted cost of one optimiser step: seconds, tokens per second, MFU, memory of the fullest device.

    Args:
        model: As in :func:`estimate`.
        device: A data sheet's name, alias or file.
        runtime: Whose kernels and fusion.
        tokens: Positions of each sequence.
        batch: Sequences of a step, over all replicas.
        microbatches: Parts that a replica's share is run in.
        checkpoint: Whether activations are recomputed.
        weights: The 16-bit format that is multiplied; what the device multiplies unless given.
        tp: Devices that share every matrix.
        pp: Pipeline stages.
        ep: Groups that a mixture's experts are dealt out to.
        dp: Replicas, which share the batch and sum gradients.

    Raises:
        UnknownName: A name that is not known.
        SpecError: A plan or batch that does not divide.
        Unsupported: The device has no rate for a format.
        DoesNotFit: Too little memory; by how much, and what would help.
    """
    from chipwise.serve.request import Request, resolved
    from chipwise.serve.training import training_step

    asked = Request(model=model, device=device, runtime=runtime, weights=weights, tp=tp, pp=pp, ep=ep, dp=dp)
    found = resolved(asked)
    return training_step(
        found.setting, found.device, batch=batch, tokens=tokens, microbatches=microbatches, checkpoint=checkpoint
    )


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
        from chipwise.run.fitted import fitted_quality

        return fitted_quality(arch, tokens=count, run=run)
    from chipwise.search.laws import published_quality

    return published_quality(arch, tokens=count)


@dataclass(frozen=True)
class DeviceAnswer:
    """A model on one device: its estimate, or why there is none."""

    device: str
    estimate: CostEstimate | None
    problem: str = ""


def estimate_devices(
    model: str | ArchSpec, *, devices: Sequence[str] | None = None, **asked: Any
) -> list[DeviceAnswer]:
    """:func:`estimate` on each of ``devices`` (all that ship unless given), fastest first, then where it fails."""
    answers = []
    for name in devices or datasheet.names():
        try:
            answers.append(DeviceAnswer(name, estimate(model, device=name, **asked)))
        except (DoesNotFit, Unsupported) as error:
            answers.append(DeviceAnswer(name, None, str(error)))
    return sorted(answers, key=lambda each: each.estimate.tpot_s if each.estimate else float("inf"))


def sensitivity(
    model: str | Path,
    text: str | Path,
    *,
    weights: str = "int8",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Bits per byte that a text costs more with one layer at a time in a narrow format; what ``explain`` may be given.

    Args:
        model: A folder with weights and tokenizer, such as a winner's.
        text: A text file that the model was not trained on; a line an entry.
        weights: ``int8`` or ``int4``.
        progress: Told how many layers of how many are done.

    Raises:
        InputError: No weights, no tokenizer or no text.
        Unsupported: Another format.
    """
    from chipwise.train.sensitivity import folder_losses

    path = Path(text)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    return folder_losses(model, lines, weights, progress=progress)


def explain(
    model: str | ArchSpec, *, device: str = "h100-sxm", threads: int = 1, every: bool = False, **asked: Any
) -> Explanation:
    """Why ``model`` takes what it takes on a chip, and what to change: verdict, waterfall, operators, priced advice.

    Args:
        model: As in :func:`estimate`.
        device: A data sheet, or ``here``: this machine, as it was calibrated.
        threads: Of this machine's runtime.
        every: Keep also advice that is no sure gain.
        **asked: ``runtime``, ``weights``, ``kv``, ``tp``, ``pp``, ``ep``, ``dp``, ``batch``, ``prompt``, ``new``;
            ``shared``, tokens of each prompt that all requests have in common; ``sensitivity``, the loss that each
            layer alone costs in a narrow format, as a list or a JSON file of one; ``train`` for one optimiser step over
            ``batch`` sequences of ``prompt`` tokens, and with it ``checkpoint``: whether activations are recomputed.

    Raises:
        InputError: ``here`` was not calibrated in this runtime.
        UnknownName: A name that is not known; the nearest are offered.
        SpecError: A plan that does not divide the model.
        Unsupported: The chip has no rate for a format, or the profile none for a block.
    """
    from chipwise.explain.answer import explain_case
    from chipwise.explain.asking import calibrated_case, data_sheet_case, read_sensitivity

    names = {"prompt": "prompt_tokens", "new": "new_tokens", "shared": "shared_tokens"}
    asked = {names.get(name, name): value for name, value in asked.items()}
    if asked.pop("train", False):
        if device == "here":
            raise InputError("training on this machine is measured, not predicted: chipwise train")
        asked = {"runtime": "torch-compile", "task": "train"} | asked
    if "sensitivity" in asked:
        asked["sensitivity"] = read_sensitivity(asked["sensitivity"])
    if device != "here":
        return explain_case(data_sheet_case(model, device, **asked), every=every)
    runtime = asked.pop("runtime", "onnxruntime")
    asked["weights"] = asked.get("weights") or _weights_of_winner(model)
    return explain_case(calibrated_case(model, _kept_here(runtime, threads), **asked), every=every)


def _weights_of_winner(model: str | ArchSpec) -> str | None:
    """The weight format that a winner's folder was exported in; None of anything else."""
    if not isinstance(model, str) or not (Path(model) / PROMISES).is_file():
        return None
    return str(read_json(Path(model) / PROMISES)["weights"])


def _kept_here(runtime: str, threads: int) -> MachineProfile:
    """This machine's profile.

    Raises:
        InputError: There is none.
    """
    profile = kept_profile(runtime, threads)
    if profile is None:
        raise InputError(
            f"this machine was not calibrated in {runtime} with {threads} threads; run: chipwise calibrate "
            f"--runtime {runtime} --threads {threads}"
        )
    return profile


def explain_measured(model: str | ArchSpec, *, threads: int = 1, seed: int = 0, **asked: Any) -> MeasuredExplanation:
    """What ONNX Runtime's profiler sees of ``model`` on this machine, beside what calibration predicts.

    The arguments are those of :func:`explain`.

    Raises:
        InputError: This machine was not calibrated, or another runtime was asked for.
        Unsupported: The model cannot be exported.
    """
    from chipwise.explain.asking import calibrated_case
    from chipwise.explain.measured import measure_case

    asked = {{"prompt": "prompt_tokens", "new": "new_tokens"}.get(name, name): value for name, value in asked.items()}
    runtime = asked.pop("runtime", "onnxruntime")
    if runtime != "onnxruntime":
        raise InputError(f"--measured reads ONNX Runtime's profiler; {runtime} has none that is read here")
    profile = _kept_here(runtime, threads)
    return measure_case(calibrated_case(model, profile, **asked), threads=threads, seed=seed)


def compare(models: Sequence[str], *, devices: Sequence[str] | None = None, **asked: Any) -> Comparison:
    """Models side by side on ``devices`` (all that ship unless given); other arguments are those of :func:`estimate`.

    Raises:
        UnknownName: A model or device that is not known.
    """
    from chipwise.explain.compare import compare as compare_requests
    from chipwise.explain.compare import requests_of

    for model in models:
        resolve(model)
    asked = {{"prompt": "prompt_tokens", "new": "new_tokens"}.get(name, name): value for name, value in asked.items()}
    return compare_requests(*requests_of(models, devices or datasheet.names(), **asked))


def estimate_table(
    path: str | Path, out: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Answers every row of a CSV file; returns how many rows there are and how many have an error in their place.

    Raises:
        SpecError: The file is no table, or lacks the columns model and device.
        StorageError: ``out`` cannot be written.
    """
    from chipwise.serve.table import estimate_file

    return estimate_file(Path(path), Path(out), progress=progress)


def ops_table(path: str | Path, out: str | Path) -> tuple[int, int]:
    """Answers every row of a CSV file of single operators; returns how many rows there are and how many have an error.

    Raises:
        SpecError: The file is no table, or lacks the columns op and device.
        StorageError: ``out`` cannot be written.
    """
    from chipwise.predict.optable import ops_file

    return ops_file(Path(path), Path(out))


FITS = ("gemm", "attention", "latent", "experts", "collective", "scan", "power")
"""Kinds of kernels that are fitted to aiconfigurator's tables; ``serving`` is fitted to its sample of served runs."""


def fit(
    *,
    kinds: Sequence[str] = (),
    tables: str | Path | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Fits what ships again, from the tables of the installed package aiconfigurator-core; returns reports.

    Args:
        kinds: Of ``FITS`` and ``serving``; all unless given.
        tables: The package's ``systems`` folder; found where it is installed unless given.
        out: A folder for the fitted arrays; chipwise's own data unless given.
        progress: Told each step.

    Raises:
        UnknownName: There is no such kind.
        MissingExtra: The package, or what fits, is not installed.
    """
    import importlib

    wanted = tuple(kinds) or (*FITS, "serving")
    for kind in wanted:
        if kind not in (*FITS, "serving"):
            raise UnknownName("kind of fit", kind, [*FITS, "serving"])
    root = Path(tables) if tables is not None else _installed_tables()
    reports = []
    for kind in wanted:
        if kind == "serving":
            from chipwise.serve import batching, fitting

            errors = fitting.fit(
                root / "silicon_sample.csv", Path(out) / "serving.json" if out else batching.DATA, progress=progress
            )
            reports.append(f"serving: {errors}")
            continue
        from chipwise.predict import kernels

        module = importlib.import_module(f"chipwise.predict.fitting.{kind}")
        folder = Path(out) if out is not None else Path(kernels.__file__).parents[1] / "data"
        reports.append(str(module.fit(root, folder, progress=progress)))
    return reports


def learn(*, runtime: str = "onnxruntime", threads: int = 1, count: int | None = None) -> tuple[Learned, Path]:
    """Updates this machine's own profile by what was measured on it; returns what was learned and the profile's file.

    Args:
        runtime: The profile's runtime.
        threads: The profile's threads.
        count: Learn from this many of the measurements, drawn at random.

    Raises:
        InputError: There is no profile, or too few measurements.
    """
    from chipwise.predict.learn import fit_from_measurements

    path = profile_path(runtime, threads)
    if not path.exists():
        raise InputError(f"this machine has no profile in {runtime} with {threads} threads; run: chipwise calibrate")
    learned = fit_from_measurements(MachineProfile.load(path), count=count)
    learned.profile.save(path)
    return learned, path


def _installed_tables() -> Path:
    from importlib.util import find_spec

    found = find_spec("aiconfigurator_core")
    if found is None or found.origin is None:
        raise MissingExtra("aiconfigurator-core", "fit")
    return Path(found.origin).parent / "systems"


PREDICTED = {"gemm": "latency_s", "attention": "latency_s", "serving": "tpot_s", "power": "power_w"}
"""What is predicted of each kind of measured row: the column of the predictions."""


def validate(kind: str, truth: str | Path, out: str | Path, *, leave_out: LeaveOut = "none") -> list[Score]:
    """Predicts measured rows and says how far off that is, over all and by subset.

    Args:
        kind: ``gemm``, ``attention``, ``serving`` or ``power``.
        truth: A folder that holds ``KIND.csv``, or the file.
        out: Where the predictions go: row_id, the prediction, low_s and high_s.
        leave_out: ``device`` or ``family`` to predict each row by a fit that had not seen its device or family.

    Raises:
        UnknownName: There is no such kind.
        SpecError: The file is missing or lacks a column.
    """
    from chipwise.predict.validation import kernels, power, score
    from chipwise.serve.validation import serving

    readers: dict[str, Callable[[Path, LeaveOut], list[score.Row]]]
    readers = {"gemm": kernels.gemm, "attention": kernels.attention, "serving": serving, "power": power.watts}
    if kind not in readers:
        raise UnknownName("kind of measurement", kind, readers)
    path = Path(truth)
    rows = readers[kind](path / f"{kind}.csv" if path.is_dir() else path, leave_out)
    answered = [row for row in rows if row.predicted is not None]
    write_rows(
        Path(out),
        [
            {"row_id": row.row_id, PREDICTED[kind]: row.predicted, "low_s": row.low, "high_s": row.high}
            for row in answered
        ],
        ("row_id", PREDICTED[kind], "low_s", "high_s"),
    )
    return score.scores(rows)


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = 45.0,
    out: str | Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[MachineProfile, Path]:
    """Profiles this machine in a runtime for about ``seconds``; returns the profile and the file it was written to."""
    from chipwise.profile.calibrate import calibrate as profile_machine

    path = Path(out) if out is not None else profile_path(runtime, threads)
    profile = profile_machine(runtime=runtime, threads=threads, seconds=seconds, progress=progress)
    before = kept_profile(runtime, threads)
    if before is not None and before.thermal is not None:  # heat is no matter of rates
        profile = replace(profile, thermal=before.thermal)
    profile.save(path)
    return profile, path


@dataclass(frozen=True)
class Measured:
    """A measurement, what was predicted or promised of it, and the limits it was to keep."""

    measurement: Measurement
    metrics: dict[str, float]
    predicted: CostEstimate | None
    promised: dict[str, Any] | None
    limits: tuple[Constraint, ...] = ()
    used: Efficiency | None = None  # of the machine's measured ceilings, where they and the design are known
    sustained: Sustained | None = None
    thermal_kept: bool = False  # in this machine's profile


def measure(
    model: str,
    *,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str = "fp32",
    sustained_s: float | None = None,
    remote: str | None = None,
    keep: bool = True,
) -> Measured:
    """Measures a model on this machine, or on another that is reached by ssh.

    Args:
        model: A winner's folder, an exported file (``.onnx``, ``.gguf``), a Hugging Face folder or ``config.json``, a
            spec file, or a known name. What has no weights is measured with random ones.
        runtime: The runtime to measure in; llama.cpp for GGUF files and ONNX Runtime for all else unless given.
        threads: Threads of the runtime; those of the run for a winner, else 1.
        batch: Requests at once; those of the run for a winner, else 1.
        prompt: Prompt tokens; those of the run for a winner, else 64.
        new: New tokens, likewise.
        weights: The weight format where the model is built here.
        sustained_s: Run without a pause for so long, and see how speed decays.
        remote: ``user@host`` of a machine with Python, numpy and the runtime.
        keep: Whether the store of measurements takes it.
    """
    from chipwise.profile.harness import measure as profile_model
    from chipwise.profile.store import MeasurementStore
    from chipwise.profile.sustained import measure_sustained
    from chipwise.run.measuring import metrics_of

    folder = Path(model)
    runtime = runtime or ("llama.cpp" if folder.suffix == ".gguf" else "onnxruntime")
    promises = read_json(folder / PROMISES) if (folder / PROMISES).is_file() else None
    said = promises["workload"] if promises else {"prompt_tokens": 64, "new_tokens": 64, "batch": 1}
    workload = Workload(
        prompt_tokens=prompt or said["prompt_tokens"],
        new_tokens=new or said["new_tokens"],
        batch=batch or said["batch"],
    )
    threads = threads or (promises["target"]["threads"] if promises else 1)
    with tempfile.TemporaryDirectory() as room:
        path, design = _exported(model, Path(room), runtime=runtime, weights=weights, workload=workload)
        profile = kept_profile(runtime, threads) if remote is None else None
        settings: dict[str, Any] = {"runtime": runtime, "threads": threads, "remote": remote}
        settings["calibrated"] = profile.anchors if profile is not None else None
        watched = None
        if sustained_s is None:
            found = profile_model(path, workload, **settings)
        else:
            watched = measure_sustained(path, workload, seconds=sustained_s, **settings)
            found = watched.measurement
    if keep:
        MeasurementStore().add(found, design=design, source="measure" if remote is None else f"measure on {remote}")
    kept = watched is not None and remote is None and keep
    same = promises is not None and plain(workload) == promises["workload"]
    return Measured(
        measurement=found,
        metrics=metrics_of(found),
        predicted=None
        if design is None or remote or found.encodes
        else predict(design, workload, runtime=runtime, threads=threads),
        promised=promises["promised"] if promises is not None and same else None,
        limits=_limits_of(promises) if promises is not None and same else (),
        used=None if design is None or profile is None else _used(design, found, profile),
        sustained=watched,
        thermal_kept=watched is not None and kept and keep_thermal(watched.thermal, runtime=runtime, threads=threads),
    )


def _limits_of(promises: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """The limits of a winner that a measurement can tell of; a task's floor is for :func:`evaluate`."""
    return tuple(item for item in parse_constraints(promises["constraints"], tasks=None) if item.task is None)


def _used(design: Design, found: Measurement, profile: MachineProfile) -> Efficiency | None:
    try:
        return efficiency(design, found, profile)
    except Unsupported:
        return None


def _exported(model: str, room: Path, *, runtime: str, weights: str, workload: Workload) -> tuple[Path, Design | None]:
    """The file to measure, as ``runtime`` reads it, and its design where it is known."""
    from chipwise.profile.exporting import export_for, suffix_of

    folder, wanted = Path(model), suffix_of(runtime)
    if folder.suffix in (".onnx", ".gguf"):
        if not folder.is_file():
            raise SpecError("there is no such file", file=model)
        if folder.suffix != wanted:
            raise InputError(f"{model}: {runtime} runs {wanted} files; give --runtime one that runs {folder.suffix}")
        return folder, _design_inside(folder)
    if (folder / PROMISES).is_file():
        known = read_json(folder / PROMISES)
        arch = spec_io.from_data(known["arch"], file=str(folder / PROMISES))
        design = Design(arch=arch, weights=known["weights"])
        if wanted in (".onnx", ".gguf") and (folder / f"model{wanted}").is_file():
            return folder / f"model{wanted}", design
        from chipwise.deploy.hf import load_pretrained

        return export_for(runtime, design, room, weights=load_pretrained(folder)[1]), design
    arch = resolve(model)
    if (workload.prompt_tokens if is_encoder(arch) else workload.total_tokens) > arch.max_tokens:
        raise InputError(
            f"{model} has {arch.max_tokens} positions; --prompt {workload.prompt_tokens} and --new "
            f"{workload.new_tokens} ask for {workload.total_tokens}"
        )
    design = Design(arch=arch, weights=weights)
    return export_for(runtime, design, room), design


def _design_inside(path: Path) -> Design | None:
    """The design that a GGUF file holds, if it is one whose costs are known."""
    if path.suffix != ".gguf":
        return None
    from chipwise.deploy.gguf_read import read_design

    try:
        return read_design(path)
    except Unsupported:
        return None


def predict(design: Design, workload: Workload, *, runtime: str, threads: int) -> CostEstimate | None:
    """What this machine's own profile predicts, or None where it was not calibrated in this runtime."""
    path = profile_path(runtime, threads)
    if not path.exists():
        return None
    graphs = [lower(design, workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    return calibrated_estimate(design, graphs[0], graphs[1], workload, MachineProfile.load(path))
