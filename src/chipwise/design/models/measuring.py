"""Measures a model on this machine and compares it with its predicted metrics."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.core.fields import later
from chipwise.core.files import build
from chipwise.core.results import Result
from chipwise.core.workers import answer_of
from chipwise.deploy.calibrate.efficiency import Efficiency, efficiency
from chipwise.deploy.export import exporters
from chipwise.deploy.export.exporters import check_memory, suffix_of
from chipwise.deploy.export.gguf_read import read_design
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.graphs.inputs import Feed, write_arrays
from chipwise.deploy.graphs.modules import Inputs, Module, is_module, name_of, on_disk
from chipwise.deploy.graphs.reading import feed_for, needs_feed
from chipwise.deploy.measure import harness
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore, kept_as, save_thermal, saved_profile
from chipwise.deploy.measure.sustained import Sustained, measure_sustained
from chipwise.deploy.runtimes import table_name
from chipwise.design.limits import Constraint, with_gaps
from chipwise.design.models.this_machine import kind_of
from chipwise.design.phases.measuring import metrics_of
from chipwise.design.run.winner import WinnerFile, read_winner
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.hardware.detect import SATURATING
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.built import require_built
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate as calibrated_estimate
from chipwise.predict.cost.model import CostEstimate, Predicted
from chipwise.predict.served.heat import ambient_of
from chipwise.predict.served.tails import TAILS

PROFILE_S = 600.0  # most seconds of the profiling process
ONE_PASS = Workload(prompt_tokens=1, new_tokens=1)
Interval = tuple[float, float | None, float | None]
"""A value and the bounds of its interval; None for an unknown bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate:
    """A graph whose grouped products (of many experts, of grouped convolutions) run one by one: median seconds."""

    groups: int  # grouped products of the graph
    operators: int
    seconds: float
    slower: Interval  # its time over that of the graph as it is, in passes in turns, with its 90 % interval


FILES = {".onnx": "onnxruntime", ".gguf": "llama.cpp", ".pte": "executorch", ".tflite": "litert"}
"""Exported files that are measured as they are, with the runtime of each unless another is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusions:
    """A graph with the runtime's optimisations, mostly fused operators, and without: operators, median seconds."""

    operators: int
    operators_without: int
    seconds: float
    seconds_without: float
    slower: Interval  # ratio of the two in passes in turns, with its 90 % interval
    separate: Separate | None = later(None)  # noqa: RUF009  (if it has grouped products)


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """A measurement, its prediction, and the limits that apply to it."""

    measurement: Measurement
    metrics: dict[str, float]
    predicted: CostEstimate | None
    promised: Mapping[str, Interval] | None
    limits: tuple[Constraint, ...] = ()
    used: Efficiency | None = None  # MFU and MBU, if the machine's peaks and the design are known
    sustained: Sustained | None = None
    thermal_kept: bool = False  # whether it was stored in this machine's profile
    notes: tuple[str, ...] = later(())
    profile: tuple[Mapping[str, object], ...] = later(())  # operators by time, if asked for
    fusions: Fusions | None = later(None)  # noqa: RUF009  (beside ``profile``)

    def headline(self) -> str:
        """The model, the runtime and device, and whether the machine was quiet."""
        found = self.measurement
        quiet = "clean" if found.clean else "not clean"
        return f"{found.name} in {found.runtime} on {found.device}, {quiet}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per metric: measured, and predicted with its interval if a prediction exists."""
        return beside(self.metrics, {} if self.predicted is None else self.predicted.metrics)


def beside(metrics: Mapping[str, float], predicted: Mapping[str, Predicted]) -> list[Mapping[str, object]]:
    """One row per metric: measured, and predicted with its interval if a prediction exists."""
    rows: list[Mapping[str, object]] = []
    for name, value in metrics.items():
        guess = predicted.get(name)
        row = {"metric": name, "measured": value, "predicted": guess.value if guess else None}
        rows.append(row | {"low": guess.low if guess else None, "high": guess.high if guess else None})
    return rows


def measure(
    model: str | Path | Module,
    *,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str | None = None,
    sustained_s: float | None = None,
    ambient_c: float | None = None,
    remote: str | None = None,
    keep: bool = True,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: str | Path | Inputs | None = None,
    profile: bool = False,
) -> Measured:
    """Measures a model on this machine, or on another one over ssh.

    Args:
        model: A winner's folder, an exported file (``.onnx``, ``.gguf``, ``.pte``, ``.tflite``), a Hugging Face folder
            or ``config.json``, a spec file, or a known name. Models without weights are measured with random ones. Also
            any other ONNX file, a PyTorch module, or the name of one, ``package.module:build`` or ``file.py:build``,
            which is imported.
        runtime: The runtime to measure in. Default: that of the exported file, else ONNX Runtime.
        threads: Threads of the runtime. Default: the run's own for a winner, else 1.
        batch: Concurrent requests. Default: the run's own for a winner, else 1.
        prompt: Prompt tokens. Default: the run's own for a winner, else 64.
        new: New tokens. Default: the run's own for a winner, else 64.
        weights: Weight format of a model that is built here. Default: fp32.
        sustained_s: Run without a pause for this many seconds and fit how speed decays.
        ambient_c: Temperature of the surroundings in degrees Celsius, stored with a sustained measurement.
        remote: ``user@host`` of a machine with Python, numpy and the runtime.
        keep: Whether to save the result to the measurement store.
        shapes: Any other ONNX graph: shapes of inputs with open axes. An open first axis is 1 unless given. A module:
            the shapes of its arguments.
        values: Any other ONNX graph: values that fill whole inputs. A module: also arguments that are numbers.
        inputs: Any other ONNX graph: a ``.npz`` file with an array for each input. Default: random numbers, indices
            within their tables, masks of ones. A module: such a file, or its arguments, as ``(x,)`` or by name.
        profile: Also measure the operators of an ONNX graph, and passes without the runtime's fusions.

    Raises:
        InputError: The model is unknown or does not fit in memory, or an argument is out of range.
        MeasurementError: The model cannot be loaded or run.
    """
    text_only: dict[str, object] = {
        "batch": batch,
        "prompt": prompt,
        "new": new,
        "weights": weights,
    }
    text_only |= {"remote": remote, "sustained_s": sustained_s, "ambient_c": ambient_c}
    if ambient_c is not None:
        if sustained_s is None:
            raise SpecError("is for a sustained measurement; give sustained_s, too", field="ambient")
        ambient_of(ambient_c)
    own = shapes is not None or values is not None or inputs is not None or profile
    if (weights is None or is_module(model)) and is_graph(model, own=own):
        if remote is None:
            harness.check_threads(threads or 1)
        check_graph(model, None if runtime is None else table_name(runtime), text_only)
        with on_disk(model, inputs=inputs, shapes=shapes, values=values) as file:
            feed = feed_for(file.path, file.shapes, file.values, file.data)
            return _measure_graph(file.path, feed, threads=threads or 1, keep=keep, profile=profile)
    model = str(model)
    runtime = table_name(runtime or runtime_of(model))
    winner = read_winner(Path(model))
    workload, usual_threads = usual_request(model, batch=batch, prompt=prompt, new=new)
    threads = threads or usual_threads
    if remote is None:
        harness.check_threads(threads)
    with tempfile.TemporaryDirectory() as room:
        path, design = exported_file(
            model,
            Path(room),
            runtime=runtime,
            weights=weights,
            workload=workload,
            external_data=remote is None,
        )
        found = timed(
            path,
            design,
            workload,
            runtime=runtime,
            threads=threads,
            sustained_s=sustained_s,
            ambient_c=ambient_c,
            remote=remote,
            keep=keep,
        )
    if winner is None or workload != winner.workload:
        return found
    return _beside_promises(found, winner)


def _beside_promises(found: Measured, winner: WinnerFile) -> Measured:
    """A winner's measurement with its promises and limits; only those on requests of one size, if its prompts vary."""
    asked = {*winner.promised, *(limit.metric for limit in winner.limits)}
    found = replace(found, metrics=with_gaps(found.metrics, asked))
    if winner.prompt_p99 is None:
        return replace(found, promised=winner.promised, limits=winner.limits)
    vary = {*TAILS, "peak_memory"}
    usual = winner.workload.prompt_tokens
    note = (
        f"the winner's P99s and memory hold over prompts of {usual:,} to {winner.prompt_p99:,} tokens; these are "
        f"all of {usual:,}; measure the longer, too: --prompt {winner.prompt_p99}"
    )
    return replace(
        found,
        promised={name: each for name, each in winner.promised.items() if name not in vary},
        limits=tuple(limit for limit in winner.limits if limit.metric not in vary),
        notes=(*found.notes, note),
    )


def timed(
    path: Path,
    design: Design | None,
    workload: Workload,
    *,
    runtime: str,
    threads: int,
    sustained_s: float | None = None,
    ambient_c: float | None = None,
    remote: str | None = None,
    keep: bool = True,
    options: Mapping[str, object] | None = None,
) -> Measured:
    """Measures the file at ``path``; adds the prediction for ``design`` if both it and a profile are known.

    Raises:
        MeasurementError: The model cannot be loaded or run.
    """
    profile = saved_profile(runtime, threads) if remote is None else None
    calibrated, watched = None if profile is None else profile.reference_s, None
    if sustained_s is None:
        found = harness.measure(
            path, workload, runtime=runtime, threads=threads, remote=remote, calibrated=calibrated, options=options
        )
    else:
        watched = measure_sustained(
            path,
            workload,
            seconds=sustained_s,
            ambient_c=ambient_c,
            runtime=runtime,
            threads=threads,
            remote=remote,
            calibrated=calibrated,
        )
        found = watched.measurement
    if keep:
        MeasurementStore().add(found, design=design, source="measure" if remote is None else f"measure on {remote}")
    kept = watched is not None and remote is None and keep
    return Measured(
        measurement=found,
        metrics=metrics_of(found),
        predicted=None
        if design is None or remote or _encodes_text(design.arch)
        else predict(design, workload, runtime=runtime, threads=threads),
        promised=None,
        used=None if design is None or profile is None else _used(design, found, profile),
        sustained=watched,
        thermal_kept=watched is not None and kept and save_thermal(watched.thermal, runtime=runtime, threads=threads),
        notes=_saturated(path, found),
    )


def is_graph(model: str | Path | Module, *, own: bool) -> bool:
    """Whether ``model`` is a module or an ONNX graph that is run on data for its inputs, ``own`` ones or made ones.

    Raises:
        InputError: It is neither, and data are given.
    """
    if not isinstance(model, str | Path) or is_module(model):
        return True
    if Path(model).suffix != ".onnx":
        if own:
            raise InputError(
                f"{model}: shapes, values, inputs and profile only apply to .onnx files and PyTorch modules"
            )
        return False
    return own or needs_feed(model)


def check_graph(model: object, runtime: str | None, refused: Mapping[str, object]) -> None:
    """Checks the request for an ONNX graph or a module that is run on data.

    Raises:
        InputError: An argument of ``refused`` is given, or the runtime runs no such graphs.
    """
    if given := [name for name, value in refused.items() if value is not None]:
        raise InputError(
            f"{', '.join(given)}: does not apply to {name_of(model)}, whose inputs have shapes of their own; give them "
            "with shapes (--shape)"
        )
    if runtime not in (None, "onnxruntime"):
        raise InputError(
            f"{name_of(model)}: graphs with inputs of their own are measured in onnxruntime, not {runtime}; "
            "tvm compiles them first: measure_compiled (--runtime tvm)"
        )


def _measure_graph(path: Path, feed: Feed, *, threads: int, keep: bool, profile: bool) -> Measured:
    """Measures an ONNX graph on ``feed``; its operators too, if ``profile``."""
    with tempfile.TemporaryDirectory() as room:
        file = Path(room) / "feed.npz"
        write_arrays(file, feed)
        found = timed(
            path,
            None,
            ONE_PASS,
            runtime="onnxruntime",
            threads=threads,
            keep=keep,
            options={"feed": str(file)},
        )
        if not profile:
            return found
        request = {"model": str(path.resolve()), "feed": str(file), "threads": threads, "folder": room, "fusions": True}
        told = answer_of("chipwise.deploy.graphs.profiling", request, timeout_s=PROFILE_S, name="profile")
        return replace(found, profile=tuple(told["rows"]), fusions=build(Fusions, told["fusions"], field="fusions"))


def _saturated(path: Path, found: Measurement) -> tuple[str, ...]:
    """A note if the file's int8 products saturate on the processor that measured it."""
    if found.runtime != "onnxruntime" or path.suffix != ".onnx" or found.instructions not in SATURATING:
        return ()
    from chipwise.deploy.export.saturation import saturates  # onnx

    if not saturates(path):
        return ()
    return (
        f"int8 weights of this file use the full range, so its outputs are wrong on this processor "
        f"({found.instructions}); export it again",
    )


def _used(design: Design, found: Measurement, profile: MachineProfile) -> Efficiency | None:
    try:
        return efficiency(design, found, profile)
    except Unsupported:
        return None


def runtime_of(model: str) -> str:
    """The default runtime for measuring a model."""
    return FILES.get(Path(model).suffix, "onnxruntime")


def usual_request(model: str, *, batch: int | None, prompt: int | None, new: int | None) -> tuple[Workload, int]:
    """The workload and number of threads to measure with; defaults come from a winner's run."""
    winner = read_winner(Path(model))
    usual = winner.workload if winner is not None else Workload()
    workload = Workload(
        prompt_tokens=prompt or usual.prompt_tokens,
        new_tokens=new or usual.new_tokens,
        batch=batch or usual.batch,
    )
    return workload, winner.threads if winner is not None else 1


def design_of_model(model: str, *, weights: str | None) -> Design:
    """The design of a GGUF file, a winner's folder, or a spec, config or known name in the format ``weights``.

    Raises:
        InputError: The model or its weight format is unknown.
        Unsupported: The GGUF file has an unsupported architecture.
    """
    if Path(model).suffix == ".gguf":
        return read_design(model)
    if (winner := read_winner(Path(model))) is not None:
        return winner.design
    if weights is None:
        raise InputError(f"{model}: state the weight format that was measured, with weights (--weights q4_k_m)")
    return Design(arch=resolve(model), weights=weights)


def exported_file(
    model: str,
    room: Path,
    *,
    runtime: str,
    weights: str | None,
    workload: Workload,
    external_data: bool = False,
) -> tuple[Path, Design | None]:
    """The file to measure, in the format of ``runtime``, and its design if known. New files are written to ``room``.

    ``external_data``: whether a model of more than 2 GiB may be written as two files, see ``export_for``.
    """
    folder, wanted = Path(model), suffix_of(runtime)
    if folder.suffix in FILES:
        if not folder.is_file():
            raise SpecError("there is no such file", file=model)
        if folder.suffix != wanted:
            raise InputError(f"{model}: {runtime} runs {wanted} files; give --runtime one that runs {folder.suffix}")
        _same_weights(model, None, weights)
        return folder, _design_inside(folder)
    if (winner := read_winner(folder)) is not None:
        design = winner.design
        _same_weights(model, design.weights, weights)
        if wanted in (".onnx", ".gguf") and (folder / f"model{wanted}").is_file():
            return folder / f"model{wanted}", design

        found = load_pretrained(folder)[1]
        return exporters.export_for(runtime, design, room, weights=found, external_data=external_data), design
    for file in sorted(folder.glob("*.safetensors")):
        _check_header(file)
    arch = resolve(model)
    asked = workload.prompt_tokens if _encodes_text(arch) else workload.total_tokens
    if arch.context is not None and asked > arch.context:
        raise InputError(
            f"{model} has {arch.context} positions; --prompt {workload.prompt_tokens} and --new "
            f"{workload.new_tokens} need {workload.total_tokens}"
        )
    require_built(arch, work="measured")
    design = Design(arch=arch, weights=weights or "fp32")
    check_memory(design, workload)
    return exporters.export_for(runtime, design, room, external_data=external_data), design


def _encodes_text(arch: ArchSpec) -> bool:
    """Whether a model reads tokens and generates none; machine profiles cannot price such models."""
    return arch.context is not None and not arch.causal


def _check_header(file: Path) -> None:
    """Checks that a file of weights starts like safetensors: the length of a JSON header, then the header.

    Measuring does not read these weights, but a broken file should still be reported.

    Raises:
        SpecError: The file is something else, such as a pickle.
    """
    if not file.is_file():
        raise SpecError("is no file", file=str(file))
    with file.open("rb") as opened:
        start = opened.read(9)
    if len(start) < 9 or int.from_bytes(start[:8], "little") > file.stat().st_size - 8 or start[8:] != b"{":
        raise SpecError("is not a safetensors file: it is damaged or a renamed pickle", file=str(file))


def _same_weights(model: str, exported: object, wanted: str | None) -> None:
    """Checks that an exported model has the wanted weight format."""
    if wanted is not None and wanted != exported:
        kind = "" if exported is None else f" in {exported}"
        raise InputError(f"{model}: is already exported{kind}; --weights only applies to models that are built here")


def _design_inside(path: Path) -> Design | None:
    """The design of a GGUF file, if it can be priced."""
    if path.suffix != ".gguf":
        return None

    try:
        return read_design(path)
    except Unsupported:
        return None


def predict(design: Design, workload: Workload, *, runtime: str, threads: int) -> CostEstimate | None:
    """The prediction of this machine's own profile, or None if it was not calibrated in this runtime."""
    profile = saved_profile(kept_as(runtime, kind_of(design.arch)), threads)
    if profile is None:
        return None
    graphs = [lower(design, workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    return calibrated_estimate(design, graphs[0], graphs[1], workload, profile)
