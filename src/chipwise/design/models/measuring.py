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
"""A value and the bounds of its interval; an unknown bound is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separate:
    """Median seconds of a graph in which every grouped product is split into one operator per group.

    Grouped products are those of experts, and grouped convolutions.
    """

    groups: int  # grouped products of the graph
    operators: int
    seconds: float
    slower: Interval  # time relative to the unchanged graph, in alternating passes, with its 90 % interval


FILES = {".onnx": "onnxruntime", ".gguf": "llama.cpp", ".pte": "executorch", ".tflite": "litert"}
"""Suffixes of files that can be measured without an export, each with its default runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusions:
    """Number of operators and median seconds of a graph, with and without the runtime's optimisations.

    Most of these optimisations are fusions of operators.
    """

    operators: int
    operators_without: int
    seconds: float
    seconds_without: float
    slower: Interval  # ratio of the two times in alternating passes, with its 90 % interval
    separate: Separate | None = later(None)  # noqa: RUF009  (if it has grouped products)


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """A measurement, with its prediction and the limits that apply to it."""

    measurement: Measurement
    metrics: dict[str, float]
    predicted: CostEstimate | None
    promised: Mapping[str, Interval] | None
    limits: tuple[Constraint, ...] = ()
    used: Efficiency | None = None  # MFU and MBU, if the machine's peaks and the design are known
    sustained: Sustained | None = None
    thermal_kept: bool = False  # whether the slowdown under load was stored in this machine's profile
    notes: tuple[str, ...] = later(())
    profile: tuple[Mapping[str, object], ...] = later(())  # operators by time, if a profile was requested
    fusions: Fusions | None = later(None)  # noqa: RUF009  (given with ``profile``)

    def headline(self) -> str:
        """Says what was measured and where, and whether the measurement is clean (the machine was quiet)."""
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
            or ``config.json``, a spec file, or a known name. Models without weights are measured with random weights.
            The model may also be an ONNX file of another program, a PyTorch module, or the name of a module to import
            (``package.module:build`` or ``file.py:build``).
        runtime: The runtime to measure in. Default: the runtime of the exported file, else ONNX Runtime.
        threads: Threads of the runtime. Default: for a winner as in its run, else 1.
        batch: Concurrent requests. Default: for a winner as in its run, else 1.
        prompt: Prompt tokens. Default: for a winner as in its run, else 64.
        new: New tokens. Default: for a winner as in its run, else 64.
        weights: Weight format of a model that is not exported yet. Default: fp32.
        sustained_s: Seconds to run without a pause, to fit how the speed falls under load.
        ambient_c: Temperature of the surroundings in degrees Celsius, stored with a sustained measurement.
        remote: ``user@host`` of a machine with Python, numpy and the runtime.
        keep: Whether to save the result to the measurement store.
        shapes: For an ONNX file of another program: shapes of inputs that have open axes (axes without a fixed size).
            An open first axis is 1 by default. For a module: the shapes of its arguments.
        values: For an ONNX file of another program: maps the names of inputs to constants; each constant fills its
            whole input. For a module: also the values of arguments that are numbers.
        inputs: For an ONNX file of another program: a ``.npz`` file with an array for each input. Default: random
            numbers, random indices that are valid for their tables, and masks of ones. For a module: such a file, or
            the module's arguments as a tuple or by name.
        profile: Whether to also measure each operator of an ONNX graph, and passes without the runtime's fusions.

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
            raise SpecError("only applies to a sustained measurement; set sustained_s too", field="ambient")
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
    """Adds a winner's predictions and limits to its measurement.

    If prompts vary in length, predictions and limits for P99s and memory are left out.
    """
    asked = {*winner.promised, *(limit.metric for limit in winner.limits)}
    found = replace(found, metrics=with_gaps(found.metrics, asked))
    if winner.prompt_p99 is None:
        return replace(found, promised=winner.promised, limits=winner.limits)
    vary = {*TAILS, "peak_memory"}
    usual = winner.workload.prompt_tokens
    note = (
        f"the winner's P99s and memory were predicted for prompts of {usual:,} to {winner.prompt_p99:,} tokens, "
        f"but all measured prompts have {usual:,}; measure the longer ones too: --prompt {winner.prompt_p99}"
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
    """Measures the file ``path``; adds a prediction if ``design`` is given and this machine is calibrated.

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
    """Whether ``model`` is a module, or an ONNX graph that is measured on arrays for its inputs, not on tokens.

    Raises:
        InputError: The model is something else, but ``own`` is true: the user gave data for its inputs.
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
    """Checks the arguments for measuring an ONNX graph or a module on data for its own inputs.

    Raises:
        InputError: An argument in ``refused`` is given, or the runtime is not ONNX Runtime.
    """
    if given := [name for name, value in refused.items() if value is not None]:
        raise InputError(
            f"{', '.join(given)}: does not apply to {name_of(model)}, whose inputs have their own shapes; give shapes "
            "instead (--shape)"
        )
    if runtime not in (None, "onnxruntime"):
        raise InputError(
            f"{name_of(model)}: graphs with their own inputs are measured in onnxruntime, not {runtime}; "
            "to compile them with tvm first, use measure_compiled (--runtime tvm)"
        )


def _measure_graph(path: Path, feed: Feed, *, threads: int, keep: bool, profile: bool) -> Measured:
    """Measures an ONNX graph on the inputs ``feed``; with ``profile``, measures its operators too."""
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
    """A note if the file's int8 matrix products overflow (saturate) on this processor; empty if they do not."""
    if found.runtime != "onnxruntime" or path.suffix != ".onnx" or found.instructions not in SATURATING:
        return ()
    from chipwise.deploy.export.saturation import saturates  # onnx

    if not saturates(path):
        return ()
    return (
        "the int8 weights of this file use the full range, and products saturate on this processor "
        f"({found.instructions}), so the outputs are wrong; export the file again",
    )


def _used(design: Design, found: Measurement, profile: MachineProfile) -> Efficiency | None:
    try:
        return efficiency(design, found, profile)
    except Unsupported:
        return None


def runtime_of(model: str) -> str:
    """The default runtime in which to measure a model."""
    return FILES.get(Path(model).suffix, "onnxruntime")


def usual_request(model: str, *, batch: int | None, prompt: int | None, new: int | None) -> tuple[Workload, int]:
    """The workload and the number of threads for a measurement; defaults are those of a winner's run."""
    winner = read_winner(Path(model))
    usual = winner.workload if winner is not None else Workload()
    workload = Workload(
        prompt_tokens=prompt or usual.prompt_tokens,
        new_tokens=new or usual.new_tokens,
        batch=batch or usual.batch,
    )
    return workload, winner.threads if winner is not None else 1


def design_of_model(model: str, *, weights: str | None) -> Design:
    """The design of a GGUF file, a winner's folder, a spec, a config or a known name.

    ``weights`` is the weight format for a spec, config or known name; files and winners have their own formats.

    Raises:
        InputError: The model or its weight format is unknown.
        Unsupported: The GGUF file has an unsupported architecture.
    """
    if Path(model).suffix == ".gguf":
        return read_design(model)
    if (winner := read_winner(Path(model))) is not None:
        return winner.design
    if weights is None:
        raise InputError(f"{model}: say in which weight format the model was measured: weights (--weights q4_k_m)")
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
    """The file to measure in ``runtime``, exported to the folder ``room`` if needed, and its design if known.

    ``external_data`` allows an export of more than 2 GiB, which becomes two files; see ``export_for``.
    """
    folder, wanted = Path(model), suffix_of(runtime)
    if folder.suffix in FILES:
        if not folder.is_file():
            raise SpecError("there is no such file", file=model)
        if folder.suffix != wanted:
            raise InputError(f"{model}: {runtime} runs only {wanted} files; use a --runtime for {folder.suffix} files")
        _same_weights(model, None, weights)
        return folder, design_inside(folder)
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
            f"{model} has only {arch.context} positions, but --prompt {workload.prompt_tokens} and --new "
            f"{workload.new_tokens} need {workload.total_tokens}"
        )
    require_built(arch, work="measured")
    design = Design(arch=arch, weights=weights or "fp32")
    check_memory(design, workload)
    return exporters.export_for(runtime, design, room, external_data=external_data), design


def _encodes_text(arch: ArchSpec) -> bool:
    """Whether a model reads text but generates none; machine profiles cannot predict such models."""
    return arch.context is not None and not arch.causal


def _check_header(file: Path) -> None:
    """Checks that a weights file starts as safetensors files do: with the header's length, then a JSON header.

    Measuring does not read these weights, but a damaged file should be reported anyway.

    Raises:
        SpecError: The file is not safetensors, for example a pickle.
    """
    if not file.is_file():
        raise SpecError("is a folder or does not exist; it should be a safetensors file", file=str(file))
    with file.open("rb") as opened:
        start = opened.read(9)
    if len(start) < 9 or int.from_bytes(start[:8], "little") > file.stat().st_size - 8 or start[8:] != b"{":
        raise SpecError("is not a safetensors file: it is damaged or a renamed pickle", file=str(file))


def _same_weights(model: str, exported: object, wanted: str | None) -> None:
    """Checks that an already exported model has the requested weight format."""
    if wanted is not None and wanted != exported:
        kind = "" if exported is None else f" in {exported}"
        raise InputError(f"{model}: is already exported{kind}; --weights applies only to models not yet exported")


def design_inside(path: Path) -> Design | None:
    """The design of a GGUF file; None for other files and for architectures that chipwise does not support."""
    try:
        return read_design(path) if path.suffix == ".gguf" else None
    except Unsupported:
        return None


def predict(design: Design, workload: Workload, *, runtime: str, threads: int) -> CostEstimate | None:
    """Predicts a model's metrics from this machine's profile; None if the machine is not calibrated in this runtime."""
    profile = saved_profile(kept_as(runtime, kind_of(design.arch)), threads)
    if profile is None:
        return None
    graphs = [lower(design, workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    return calibrated_estimate(design, graphs[0], graphs[1], workload, profile)
