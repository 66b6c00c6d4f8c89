"""Packs a kit that measures models on a device without network access, and imports the kit's results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.core.files import read_text, write_atomic
from chipwise.core.results import Result
from chipwise.core.version import VERSION
from chipwise.deploy.graphs.inputs import write_arrays
from chipwise.deploy.graphs.modules import Inputs, Module, is_module, on_disk
from chipwise.deploy.graphs.reading import external_files, feed_for
from chipwise.deploy.kits.kits import FEED, Kit, KitModel, check_folder, is_kit, parse_whole, read_results, write
from chipwise.deploy.kits.llama_bench import format_of, is_llama_bench, measurements_of, read_llama_bench
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import IMPORTED, MeasurementStore
from chipwise.deploy.runtimes import table_name
from chipwise.design.models.measuring import (
    check_graph,
    design_of_model,
    exported_file,
    is_graph,
    runtime_of,
    usual_request,
)
from chipwise.design.phases.kit_folder import FinishedRun, check_runtimes, described, file_results, pack_run, run_of
from chipwise.design.run.folder import holds_run
from chipwise.errors import InputError, SpecError, counted
from chipwise.hardware import datasheet
from chipwise.hardware.detect import detect
from chipwise.hardware.device import MachineProfile
from chipwise.model import graphs as reading
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.predict.kernels.local_engines import part_of

LOCAL = "local"


@dataclass(frozen=True, repr=False)
class PackedKit(Result):
    """A kit that was packed: its folder and contents."""

    folder: Path
    kit: Kit
    notes: tuple[str, ...] = ()  # what was left out, and why

    def headline(self) -> str:
        """Says what was packed, in which folder, and for which device."""
        files = f"{len(self.kit.models)} model{'s' if len(self.kit.models) > 1 else ''}"
        return f"{files} in {self.folder} for {self.kit.device or self.kit.machine or 'any device'}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per file."""
        return [
            {
                "file": item.file,
                "trial": item.trial,
                "role": item.role,
                "runtime": item.runtime,
                "weights": item.weights,
                "bytes": item.bytes,
            }
            for item in self.kit.models
        ]


@dataclass(frozen=True, repr=False)
class Imported(Result):
    """Result of an import of measurements."""

    file: str
    new: int  # measurements that were not in the store before
    measurements: tuple[Measurement, ...] = ()
    run: Path | None = None  # the run that stores the measurements and uses them when it is resumed
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """Says how many measurements are new, and to which run they belong."""
        where = "" if self.run is None else f"; stored in {self.run}, continue with: chipwise search … --resume"
        return f"{self.new} new measurement{'' if self.new == 1 else 's'} from {self.file}{where}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per measurement."""
        return [
            {
                "name": item.name,
                "device": item.device,
                "runtime": item.runtime,
                "ttft_p50_s": item.percentile("ttft", 0.5),
                "tpot_p50_s": None if item.encodes else item.percentile("tpot", 0.5),
                "clean": item.clean,
            }
            for item in self.measurements
        ]


def kit(
    source: str | Path | Module | Sequence[str | Path | Module],
    *,
    out: str | Path | None = None,
    device: str | None = None,
    runtime: str | None = None,
    candidates: int = 6,
    threads: int | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: str | Path | Inputs | None = None,
) -> PackedKit:
    """Packs models, a measuring script and instructions into a folder that the user copies to another device.

    The script needs only Python's standard library and the runtime. :func:`import_measurements` reads its results.

    Args:
        source: A run's folder (its winner, its reference design and some designs of its Pareto front are packed), a
            model as in :func:`measure`, or several ONNX files and modules.
        out: Folder to write. Default: ``RUN/kit`` for a run, ``kit-NAME`` for a model, ``kit-files`` for several files.
        device: Name of the device: that of a data sheet (``apple-m4``), or any other name. Default: the device of the
            run's target.
        runtime: ``onnxruntime`` or ``llama.cpp``. Default: the run's runtime; for a model, the runtime of its file
            type, else onnxruntime.
        candidates: Largest number of designs to pack from a run's Pareto front. 0: only winner and reference design.
        threads: Threads of the runtime. Default: as in the run, else 1.
        batch: Concurrent requests of a model's workload. Default: for a winner as in its run, else 1.
        prompt: Prompt tokens of a model's workload. Default: for a winner as in its run, else 64.
        new: New tokens of a model's workload. Default: for a winner as in its run, else 64.
        weights: Weight format of a model that is not exported yet. Default: fp32.
        shapes: As in :func:`measure`, for ONNX graphs of other programs and for modules. If there are several files,
            each file uses only the shapes whose names are among its inputs.
        values: As in :func:`measure`.
        inputs: As in :func:`measure`; the kit contains these data.

    Raises:
        InputError: The source is unknown, or an argument does not apply to it.
        StudyError: The run has no design to measure yet.
        Unsupported: The script cannot measure in this runtime, or the model cannot be exported for it.
    """
    if candidates < 0:
        raise InputError(f"candidates: must be at least 0, not {candidates}")
    chosen = None if runtime is None else table_name(runtime)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if isinstance(source, str | Path) and holds_run(Path(source)):
        model_only: dict[str, object] = {"batch": batch, "prompt": prompt, "new": new, "weights": weights}
        model_only |= {"shapes": shapes, "values": values, "inputs": inputs}
        if given := [name for name, value in model_only.items() if value is not None]:
            raise InputError(f"{', '.join(given)}: the run {source} already sets this; leave it out")
        notes: list[str] = []
        spec, machine = FinishedRun.open(source).spec, None
        if device is None:
            device, machine = _target_of(spec.target.device, Path(spec.folder))
        folder, packed = pack_run(
            source,
            out=out,
            device=None if device is None else _sheet_name(device),
            machine=machine,
            runtimes=() if chosen is None else (chosen,),
            candidates=candidates,
            threads=threads,
            gpu_layers=_gpu_layers(device),
            created=created,
            version=VERSION,
            on_note=notes.append,
        )
        return PackedKit(folder, packed, tuple(notes))
    sources = [source] if isinstance(source, str) or not isinstance(source, Sequence) else list(source)
    own = shapes is not None or values is not None or inputs is not None
    several = len(sources) > 1
    graphs = [is_graph(each, own=own or (several and str(each).endswith(".onnx"))) for each in sources]
    if not sources or (several and (inputs is not None or not all(graphs))):
        raise InputError(
            "a kit of several models can contain only ONNX files and modules; pack every other model in its own kit"
        )
    if all(graphs):
        for each in sources:
            check_graph(each, chosen, {"batch": batch, "prompt": prompt, "new": new, "weights": weights})
        folder, models = _pack_graphs(sources, out, inputs=inputs, shapes=shapes or {}, values=values or {})
        workload, usual_threads = Workload(prompt_tokens=1, new_tokens=1), 1
    else:
        name = str(source)
        chosen = chosen or runtime_of(name)
        check_runtimes([chosen])
        workload, usual_threads = usual_request(name, batch=batch, prompt=prompt, new=new)
        folder = _new_folder(out, Path(name).stem)
        path, design = exported_file(name, folder / "models", runtime=chosen, weights=weights, workload=workload)
        models = [described(_copied(path, folder / "models"), folder, design, chosen)]
    packed = Kit(
        created=created,
        version=VERSION,
        name=models[0].name if len(models) == 1 else counted(len(models), "file"),
        workload=workload,
        models=tuple(models),
        threads=threads or usual_threads,
        device=None if device is None else _sheet_name(device),
        gpu_layers=_gpu_layers(device),
    )
    write(folder, packed)
    return PackedKit(folder, packed)


def _new_folder(out: str | Path | None, name: str) -> Path:
    """Returns the folder for a kit, after checking that it does not exist yet or contains an earlier kit."""
    folder = Path(out) if out is not None else Path(f"kit-{name or 'model'}")
    check_folder(folder)
    return folder


def _copied(path: Path, folder: Path) -> Path:
    """Copies a file and its external weights to ``folder``; returns the copy's path."""
    if path.parent != folder:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (path, *(external_files(path) if path.suffix == ".onnx" else ())):
            write_atomic(folder / file.relative_to(path.parent), file.read_bytes())
    return folder / path.name


def _pack_graphs(
    sources: Sequence[str | Path | Module], out: str | Path | None, *, inputs: str | Path | Inputs | None,
    shapes: Mapping[str, Sequence[int]], values: Mapping[str, float],
) -> tuple[Path, list[KitModel]]:  # fmt: skip
    """Writes graphs and their input data to the kit's folder; returns the folder and the kit's entries."""
    several, used, models = len(sources) > 1, set[str](), []
    with contextlib.ExitStack() as room:
        files = []
        for source in sources:
            own = {*shapes, *values} if not several or is_module(source) else set(reading.model_inputs(str(source)))
            used |= own
            sizes = {name: shape for name, shape in shapes.items() if name in own}
            fixed = {name: value for name, value in values.items() if name in own}
            files.append(room.enter_context(on_disk(source, inputs=inputs, shapes=sizes, values=fixed)))
        if unused := [name for name in (*shapes, *values) if name not in used]:
            raise InputError(f"{unused[0]}: no model of this kit has an input of this name")
        folder = _new_folder(out, "files" if several else files[0].path.stem)
        for place, file in enumerate(files):
            feed = feed_for(file.path, file.shapes, file.values, file.data)
            path = _copied(file.path, folder / "models" / (str(place) if several else ""))
            write_arrays(path.with_suffix(FEED), feed)
            model = described(path, folder, None, "onnxruntime")
            made = {name: array.shape for name, array in feed.items()}
            models.append(replace(model, inputs=made, values=file.values or None))
    return folder, models


def _target_of(device: str, folder: Path) -> tuple[str | None, str | None]:
    """The device name of a run's target, and the machine's name if the target is a single machine."""
    if device == LOCAL:
        return None, detect().name
    if device.startswith("ssh:"):
        return device.removeprefix("ssh:"), None
    if device.endswith(".json"):
        try:
            return None, MachineProfile.load(folder / device).machine.name
        except SpecError:  # taught from a table, so the machine is unknown
            return Path(device).stem, None
    return device, None


def _sheet_name(device: str) -> str:
    """The name of the device's data sheet; ``device`` itself if there is no data sheet."""
    try:
        return datasheet.load(device).name
    except InputError:
        return device


def _gpu_layers(device: str | None) -> int:
    """llama.cpp's number of GPU layers: -1 (all) if llama.cpp uses the device's GPU, else 0."""
    try:
        return -1 if device is not None and part_of(datasheet.load(device), "llama.cpp") == "gpu" else 0
    except InputError:
        return 0


def import_measurements(
    file: str | Path,
    *,
    run: str | Path | None = None,
    model: str | Path | None = None,
    device: str | None = None,
    weights: str | None = None,
) -> Imported:
    """Adds measurements of other machines to the store: a kit's results, llama-bench's JSON, or exported measurements.

    Results of a run's kit are also stored in the run's folder; the run uses them when it is resumed.

    Args:
        file: ``kit-results.json``, the output of ``llama-bench -o json`` (or ``jsonl``), or a file written by
            ``chipwise measurements export``.
        run: The run's folder. Default: the folder from which the kit was packed.
        model: For llama-bench: the model that was measured (a GGUF file, a known name, a spec).
        device: For llama-bench: the device's name. Default: the processor or GPU that the file states.
        weights: For llama-bench: the weight format, if ``model`` is not a file and the results do not state it.

    Raises:
        SpecError: The file is damaged or incomplete, was measured on a different machine from the one it names, belongs
            to another run, or is older than the model. In this case nothing is added.
    """
    text, name = read_text(file), str(file)
    bench = is_llama_bench(text)
    if not bench and (given := [n for n, v in {"model": model, "device": device, "weights": weights}.items() if v]):
        raise InputError(f"{', '.join(given)}: applies only to JSON of llama-bench, which {name} is not; leave it out")
    if bench:
        if run is not None:
            raise InputError(
                f"run: {name} is output of llama-bench, which belongs to no run; pack a kit of the run instead"
            )
        return _import_bench(name, model, device, weights)
    if is_kit(text):
        return _import_kit(name, run)
    if _is_half_a_kit(text):
        parse_whole(text, name=name)
    if run is not None:
        raise InputError(f"run: {name} contains no results of a kit; leave run out")
    if not text.lstrip().startswith("{") and "," in text.partition("\n")[0]:
        raise SpecError(
            f"cannot be imported, because it has no individual samples; create a machine from it with: chipwise teach "
            f"NAME --from {file} --base SHEET",
            file=name,
        )
    new = MeasurementStore().import_(file)
    return Imported(name, new, notes=_known(sum(bool(line.strip()) for line in text.splitlines()) - new))


def _known(count: int) -> tuple[str, ...]:
    """A note on how many measurements were already in the store; empty if none were."""
    return (f"{counted(count, 'measurement')} {'was' if count == 1 else 'were'} already stored",) if count else ()


def _is_half_a_kit(text: str) -> bool:
    """Whether the text begins as a JSON object but is cut off, as in an incomplete copy of a kit's results."""
    return text.lstrip().startswith("{") and not text.rstrip().endswith("}")


def _import_kit(name: str, run: str | Path | None) -> Imported:
    results = read_results(name)
    notes = [f"{item.file}: {item.error}" for item in results.measured if item.error is not None]
    notes += [item.told() for item in results.sustained]
    home = Path(run) if run is not None else run_of(results)
    if home is not None:
        file_results(home, name, on_note=notes.append)
    elif results.kit.run is not None:
        notes.append(
            f"the run {results.kit.run.name} is no longer in {results.kit.run.folder}; give its folder: --run FOLDER"
        )
    store, new, found, longest = MeasurementStore(), 0, [], results.longest()
    for model, measurement in results.measurements():
        taken = [measurement, *([longest[model.file]] if model.file in longest else [])]
        found += taken
        design = model.known_design(file=name)
        new += sum(_add(store, one, design, source=f"{IMPORTED}kit of {results.kit.name}") for one in taken)
    if not found:
        raise SpecError(f"contains no measurement: {'; '.join(notes) or 'the script was stopped early'}", file=name)
    return Imported(name, new, tuple(found), home, (*notes, *_known(len(found) - new)))


def _import_bench(name: str, model: str | Path | None, device: str | None, weights: str | None) -> Imported:
    tests = read_llama_bench(name)
    if model is None:
        raise InputError(
            f"{name} is output of llama-bench, which names only the file {tests[0].model_filename}; "
            f"say which model it is with --model: a GGUF file, a known name, a spec"
        )
    design = design_of_model(str(model), weights=weights or format_of(tests[0]))
    found = measurements_of(tests, design, device=device, file=name)
    store = MeasurementStore()
    new = sum(_add(store, item, design, source=f"{IMPORTED}llama-bench") for item in found)
    return Imported(name, new, tuple(found), notes=_known(len(found) - new))


def _add(store: MeasurementStore, measurement: Measurement, design: Design | None, *, source: str) -> int:
    known = {item.id for item in store.entries(device=measurement.device)}
    return int(store.add(measurement, design=design, source=source) not in known)
