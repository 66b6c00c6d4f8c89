"""Kits: files to copy to another device, and the results that return as one JSON file.

A kit is a folder: exported models, ``kit.json`` (this module's :class:`Kit`), the script of ``kit_script.py`` as
``kit.py`` and instructions. The script writes :class:`KitResults`, which include the kit's description and can
therefore be imported anywhere. Rounds have the same fields as the measuring process's reply (``worker.py``) and are
converted to measurements in the same way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.fields import check_fields, later
from chipwise.core.files import build, parse_json, read_json, read_text, storage, write_atomic, write_json
from chipwise.core.labels import require_label
from chipwise.deploy.measure.harness import join, measurement_of
from chipwise.deploy.measure.kit_checks import LONGEST_S, SHORTEST_S, check_ranges, require_date, require_seal, sealed
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.messages import Reply
from chipwise.deploy.measure.sustained import Window, fit_thermal
from chipwise.errors import InputError, MeasurementError, OutputError, SpecError, short
from chipwise.hardware import datasheet
from chipwise.hardware.detect import instructions
from chipwise.hardware.device import Thermal
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data
from chipwise.model.ops.workload import Workload

SCHEMA, RESULTS = "chipwise.kit/1", "chipwise.kit_results/1"
FEED = ".inputs.npz"  # suffix of the file with data for a graph, next to the graph
MANIFEST, SCRIPT, README = "kit.json", "kit.py", "README.md"
WRITTEN = {MANIFEST, SCRIPT, README, "models", "results"}  # file names in a kit's folder
RUNTIMES = ("onnxruntime", "llama.cpp")  # runtimes that the script can measure
Role = Literal["winner", "reference", "finalist", "front", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KitModel:
    """One exported file of a kit."""

    file: str  # relative to the kit's folder
    sha256: str
    bytes: int
    runtime: str
    name: str
    design: str  # digest of the design
    weights: str = "fp32"
    arch: Mapping[str, object] | None = None  # None if the file does not contain its design
    role: Role = "model"
    trial: int | None = None  # number of the trial in its run
    inputs: Mapping[str, tuple[int, ...]] | None = later(None)  # shapes of a graph's inputs, if it runs on data
    values: Mapping[str, float] | None = later(None)  # the graph's inputs with a fixed value
    made_from: Mapping[str, str] = field(default_factory=dict)  # file in the run's folder -> its SHA-256 when packed

    def __post_init__(self) -> None:
        check_fields(self)
        if self.runtime not in RUNTIMES:
            raise SpecError(f"a kit measures {' and '.join(RUNTIMES)}, not {short(self.runtime)}", field="runtime")
        require_label(self.name, "name", empty=True)
        require_label(self.file, "file")

    def known_design(self, *, file: str | None = None) -> Design | None:
        """The full design, if the kit contains it.

        Raises:
            SpecError: The design is not valid.
        """
        if self.arch is None:
            return None
        arch = from_data(dict(self.arch), file=file)
        return build(Design, {"arch": arch, "weights": self.weights}, field="kit.models", file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class KitRun:
    """The run from which a kit's models come."""

    name: str
    identity: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Contents of ``kit.json``: files, settings of the measurement, and the device."""

    schema: str = SCHEMA
    created: str  # ISO 8601
    version: str  # version of chipwise
    name: str
    workload: Workload
    models: tuple[KitModel, ...]
    threads: int = 1
    seed: int = 0
    device: str | None = None  # device as named by the user; None: any machine
    machine: str | None = None  # name of the only machine it may run on, if known
    gpu_layers: int = 0  # llama.cpp: number of layers on the GPU; -1 for all
    prompt_p99: int | None = later(None)  # tokens of the long prompt, if prompts vary; ``workload`` then has the P50
    sustained_s: float = later(0.0)  # seconds of a long load after the rounds
    run: KitRun | None = None
    seal: str = ""  # checksum of all other fields, which detects changes after packing

    def __post_init__(self) -> None:
        check_fields(self)
        require_date(self.created, "created")
        require_label(self.name, "name", empty=True)
        if self.schema != SCHEMA:
            raise SpecError(f"not a kit of this version ({SCHEMA}), but {self.schema!r}", field="schema")
        if not 1 <= self.threads <= 4096:
            raise SpecError(f"must be from 1 to 4096, not {self.threads}", field="threads")
        if len({model.file for model in self.models}) < len(self.models):
            raise SpecError("two models have the same file", field="models")

    def to_data(self) -> dict[str, object]:
        """The kit as plain data, including its checksum ``seal``."""
        return sealed(plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class KitMachine:
    """The machine on which the script ran, as its operating system reports it; None for unknown values."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int | None = None
    model: str | None = None
    gpus: tuple[str, ...] = ()
    clock_hz: float | None = None  # highest clock
    temperature_c: float | None = None
    power_meter: str | None = None  # source of the power readings
    os: str = ""
    architecture: str = ""
    flags: str = ""  # CPU flags for integer dot products
    python: str = ""

    def __post_init__(self) -> None:
        require_label(self.name, "name")
        for name in ("cpu", "model", "power_meter", "os", "architecture", "flags", "python"):
            require_label(getattr(self, name) or "", name, empty=True)
        for gpu in self.gpus:
            require_label(gpu, "gpus")
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KitRound:
    """One measurement in a fresh process, with the same fields as the reply of ``worker.py``."""

    runtime_version: str
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    ttft_cpu_s: tuple[float, ...]
    tpot_cpu_s: tuple[float, ...]
    cpu_s: float
    wall_s: float
    peak_memory_bytes: int | None
    energy_j: float | None
    readings: dict[str, float | None]
    facts: dict[str, str]
    machine: str
    reference_s: dict[str, tuple[float, ...]] = field(default_factory=dict)  # empty: the script runs no reference work
    cpus: tuple[int, ...] = ()
    load_before: float | None = None
    load_after: float | None = None
    clock_hz_before: float | None = None
    clock_hz_after: float | None = None
    temperature_c: float | None = None
    steps_per_sample: int = 1  # decode steps averaged in one tpot sample
    backends: str | None = None  # backends of llama.cpp
    energy_from: str | None = None  # source of the joules, which implies what they include

    def __post_init__(self) -> None:
        for name, least in (("ttft_s", SHORTEST_S), ("tpot_s", SHORTEST_S), ("ttft_cpu_s", 0), ("tpot_cpu_s", 0)):
            wrong = next((value for value in getattr(self, name) if not least <= value <= LONGEST_S), None)
            if wrong is not None:
                raise SpecError(f"must be times from {least:g} to {LONGEST_S:g} s, not {wrong:g}", field=name)
        if any(cpu < 0 for cpu in self.cpus):
            raise SpecError("must be processor numbers, counted from 0", field="cpus")
        for name in ("machine", "runtime_version"):
            require_label(getattr(self, name), name, empty=True)
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class KitMeasured:
    """Measurements of one file; ``error`` is the reason if they failed or are incomplete."""

    file: str
    sha256: str
    rounds: tuple[KitRound, ...] = ()
    longest: tuple[KitRound, ...] = later(())  # with the P99 prompt
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KitSustained:
    """A long load of one file without a pause. If it was not measured, ``error`` is the reason."""

    file: str
    windows: tuple[Window, ...] = ()
    ambient_c: float | None = None  # temperature of the surroundings, if stated
    error: str | None = None

    def __post_init__(self) -> None:
        require_label(self.file, "file")
        for block in (self, *self.windows):
            check_ranges(block)

    @property
    def thermal(self) -> Thermal | None:
        """The fitted curve of speed over time; None if the load was too short to fit one."""
        try:
            found = fit_thermal(self.windows)
        except MeasurementError:
            return None
        return replace(found, temperature_c=self.windows[-1].temperature_c, ambient_c=self.ambient_c)

    def told(self) -> str:
        """States how much of the initial speed remains, and clocks and temperatures if they are known."""
        thermal = self.thermal
        if thermal is None:
            return f"{self.file}: no long load: {self.error or 'it was too short'}"
        first, last = self.windows[0], self.windows[-1]
        ends = [
            f"{words} {units.show(one, kind)} to {units.show(other, kind)}"
            for words, kind, one, other in (
                ("hottest zone", "temperature", first.temperature_c, last.temperature_c),
                ("clock", "frequency", first.clock_hz, last.clock_hz),
            )
            if one is not None and other is not None
        ]
        ends += [] if self.ambient_c is None else [f"surroundings {units.show(self.ambient_c, 'temperature')}"]
        return (
            f"{self.file} keeps {units.show(thermal.sustained_share, 'share', digits=2)} of its speed over "
            f"{units.show(thermal.observed_s, 'time')} of load" + (f" ({', '.join(ends)})" if ends else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KitResults:
    """Results of a kit's script. Inconsistent values are refused."""

    schema: str
    created: str
    complete: bool  # whether every model was measured completely
    device: str | None
    machine: KitMachine
    threads: int
    kit: Kit
    measured: tuple[KitMeasured, ...]
    sustained: tuple[KitSustained, ...] = later(())

    def __post_init__(self) -> None:
        require_date(self.created, "created")
        require_label(self.device or "", "device", empty=True)
        known = {model.file: model for model in self.kit.models}
        for item in self.measured:
            if item.file not in known or known[item.file].sha256 != item.sha256:
                raise SpecError(f"{item.file} is not a file of the kit that these results name", field="measured")
            design = known[item.file].known_design()
            decodes = design is not None and design.arch.causal and design.arch.head.writes
            if decodes and self.kit.workload.new_tokens > 1 and any(not one.tpot_s for one in item.rounds):
                raise SpecError(f"{item.file} generates tokens, but its tpot_s is empty", field="measured")
        kit = self.kit
        if kit.device is not None and self.device != kit.device:
            raise SpecError(
                f"measured as {self.device or 'a device without a name'}, but the kit was made for {kit.device}; make "
                "a kit for that device with: chipwise kit … --device NAME",
                field="device",
            )
        if kit.machine is not None and self.machine.name != kit.machine:
            raise SpecError(
                f"measured on {self.machine.name}, but the kit was made for {kit.machine}; run it there, or make a kit "
                "for the other machine with: chipwise kit … --device NAME",
                field="machine.name",
            )
        other = None if self.device is None else another_device(self.device, self.machine)
        if other is not None:
            raise SpecError(
                f"measured on {other}, which is not {self.device}; run the kit on the stated device, or make a kit for "
                "the measured one with: chipwise kit … --device NAME",
                field="machine",
            )

    @property
    def device_name(self) -> str:
        """The device name for stored measurements: the stated one, else the machine's own name."""
        return self.device or self.machine.name

    def measurements(self) -> list[tuple[KitModel, Measurement]]:
        """Each measured model with all its samples, without models that could not be measured."""
        models = {model.file: model for model in self.kit.models}
        usual = self.kit.workload
        return [
            (models[item.file], self._measurement(models[item.file], item.rounds, usual))
            for item in self.measured
            if item.rounds
        ]

    def longest(self) -> dict[str, Measurement]:
        """Measurements with prompts of the workload's P99 length, by file; empty if prompt lengths do not vary."""
        models, long = {model.file: model for model in self.kit.models}, self.kit.prompt_p99
        if long is None:
            return {}
        workload = replace(self.kit.workload, prompt_tokens=long)
        return {
            item.file: self._measurement(models[item.file], item.longest, workload)
            for item in self.measured
            if item.longest
        }

    def _measurement(self, model: KitModel, rounds: tuple[KitRound, ...], workload: Workload) -> Measurement:
        parts = []
        for one in rounds:
            reply: Reply = plain(one)
            reply["facts"] = {"design": model.design, "name": model.name}
            if model.inputs:
                reply["facts"]["inputs"] = {name: list(shape) for name, shape in model.inputs.items()}
            reply["machine"], reply["reference_s"] = self.device_name, {}
            reply["instructions"] = instructions(f"flags : {self.machine.flags}")
            path, runtime = Path(model.file), model.runtime
            parts.append(measurement_of(reply, model=path, workload=workload, runtime=runtime, threads=self.threads))
        return join(parts)


def is_kit(text: str) -> bool:
    """Whether a file contains a kit's ``kit.json`` or its results, judged by its text."""
    return '"chipwise.kit' in text[:200]


def read_results(path: str | Path) -> KitResults:
    """Reads the results that a kit's script wrote.

    Raises:
        SpecError: The file is missing, damaged or of another version, or its machine is not the stated one.
    """
    name = str(path)
    return results_of(parse_whole(read_text(path), name=name), file=name)


def parse_whole(text: str, *, name: str) -> object:
    """Parses the JSON in ``text``.

    Raises:
        SpecError: The text is not JSON; if it ends too early, the message says that the file was cut off.
    """
    try:
        return parse_json(text, name=name)
    except SpecError as error:
        if not text.rstrip().endswith(("}", "]")):
            raise SpecError("the file ends in the middle of its JSON; copy it again completely", file=name) from None
        raise error from None


def results_of(data: object, *, file: str) -> KitResults:
    """The results in ``data``, which was parsed from JSON.

    Raises:
        SpecError: See :func:`read_results`.
    """
    if isinstance(data, Mapping) and data.get("schema") == SCHEMA:
        raise SpecError("this is the kit's list of models; import what its script wrote, kit-results.json", file=file)
    if not isinstance(data, Mapping) or data.get("schema") != RESULTS:
        raise SpecError(f"not the results of a kit of this version ({RESULTS})", file=file)
    require_seal(data.get("kit"), file=file, field="kit")
    return build(KitResults, data, file=file)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex.

    Raises:
        SpecError: The file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise SpecError(f"cannot be read: {error.strerror}", file=str(path)) from None


def another_device(stated: str, machine: KitMachine) -> str | None:
    """The chip that ``machine`` reports if it contradicts ``stated``; None if they agree or cannot be compared.

    The name of the processor or GPU is compared with the titles and aliases of all data sheets. A title or alias fits
    if all its words occur in the name. If several fit, only those with the most words count, and one of these must
    belong to the stated device. If none fits, the manufacturers are compared. Stated devices without a data sheet are
    not checked.
    """
    try:
        sheet = datasheet.load(stated)
    except InputError:
        return None
    texts = machine.gpus if sheet.kind == "gpu" else tuple(filter(None, (machine.cpu, machine.model)))
    found = " ".join(texts)
    words = _words(found)
    if not words:
        return None
    if fits := matching(found, gpu=sheet.kind == "gpu"):
        return None if sheet.name in fits else found
    makers = {maker for maker in _MAKERS if maker in words}
    own = {maker for maker in _MAKERS if maker in _words(f"{sheet.vendor} {sheet.title}")}
    return found if makers and own and not makers & own else None


def matching(text: str, *, gpu: bool) -> list[str]:
    """Names of the devices with a title or alias whose words all occur in ``text``; only those with most words."""
    words, fits = _words(text), dict[str, int]()
    for sheet in datasheet.load_all():
        if (sheet.kind == "gpu") == gpu:
            fits[sheet.name] = max((len(name) for name in _names(sheet) if name <= words), default=0)
    best = max(fits.values())
    return [name for name, size in fits.items() if size == best > 0]


_MAKERS = ("intel", "amd", "apple", "qualcomm", "nvidia", "mediatek", "samsung", "google", "rockchip", "broadcom")


def _names(sheet: datasheet.DeviceProfile) -> list[frozenset[str]]:
    """Sets of words that name a device: its title, and aliases that contain more than a number."""
    aliases = [alias for alias in sheet.aliases if len(alias) > 4]
    return [_words(name) for name in (sheet.title, *aliases)]


def _words(text: str) -> frozenset[str]:
    """The words of a name, without trademark signs and memory sizes."""
    return frozenset(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm|c)\)|\b\d+ ?gb\b", " ", text.lower())))


def check_folder(folder: Path) -> None:
    """Checks that ``folder`` can hold a kit: it is new, empty, or contains an earlier kit.

    Raises:
        OutputError: The path is not a folder, or contains other files.
    """
    with storage(folder):
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    others = sorted(name for name in names - WRITTEN if not name.startswith("kit-results"))
    if others:
        raise OutputError(f"{folder}: holds other files ({', '.join(others[:3])}); give a new folder with --out")


def write(folder: Path, kit: Kit) -> None:
    """Writes ``kit.json``, the script and the instructions to ``folder``, which already contains the models.

    Model files of an earlier kit in the folder are removed if they are not part of this one.

    Raises:
        StorageError: The disk is full or refuses the file.
    """
    for model in _earlier(folder / MANIFEST):
        if model not in {item.file for item in kit.models} and (folder / model).resolve().is_relative_to(
            (folder / "models").resolve()
        ):
            (folder / model).unlink(missing_ok=True)
    write_atomic(folder / SCRIPT, Path(__file__).with_name("kit_script.py").read_bytes())
    write_atomic(folder / README, _instructions(kit))
    write_json(folder / MANIFEST, kit.to_data())


def _earlier(path: Path) -> list[str]:
    try:
        return [item.file for item in read_kit(path).models] if path.is_file() else []
    except SpecError:
        return []


def read_kit(path: str | Path) -> Kit:
    """Reads a kit's ``kit.json``.

    Raises:
        SpecError: The file is missing, damaged, or of a different version.
    """
    data = read_json(path)
    require_seal(data, file=str(path))
    return build(Kit, data, file=str(path))


def _instructions(kit: Kit) -> str:
    """The text of the README in the kit's folder."""
    request = kit.workload
    where = kit.device or kit.machine or "the device"
    rows = "".join(
        f"| `{item.file}` | {item.name}{'' if item.trial is None else f', trial {item.trial}'} | {item.role} "
        f"| {item.runtime} | {units.show(item.bytes, 'bytes')} |\n"
        for item in kit.models
    )
    needs = {item.runtime: _NEEDS[item.runtime] for item in kit.models}
    return _README.format(
        name=kit.name,
        where=where,
        rows=rows,
        needs="".join(f"- {text}\n" for text in needs.values()),
        prompt=" or ".join(map(str, filter(None, (request.prompt_tokens, kit.prompt_p99)))),
        long=f"After the rounds the first file runs {kit.sustained_s:g} s without a pause. " if kit.sustained_s else "",
        new=request.new_tokens,
        batch=request.batch,
        threads=kit.threads,
        version=kit.version,
    )


_NEEDS = {
    "onnxruntime": "for `.onnx` files the package onnxruntime: `python3 -m pip install onnxruntime`",
    "llama.cpp": "for `.gguf` files llama.cpp: the package (`python3 -m pip install llama-cpp-python`), which times "
    "every decode step; or its program `llama-bench`, on the PATH or named with `--llama-bench PROGRAM`, which gives "
    "only means over many steps, so the P99 of single steps stays unknown",
}
_README = """# Measuring {name} on {where}

Made by chipwise {version}. Copy this whole folder to {where} and run there:

    python3 kit.py

It needs Python 3.9 or newer, and

{needs}
It writes `kit-results.json`: samples of the time to first token and the time per output token, peak memory, and what
the machine is (processor, memory, system, clocks and temperatures where they can be read). Nothing is sent anywhere.
Close other programs first. {long}`python3 kit.py --sustained 600 --ambient 25` records how speed, clock and temperature
change over ten minutes of load, in surroundings of 25 °C. Power is measured if the system reports it (the first lines
of output name the source). A phone or laptop reports it through its battery: charge and unplug the device if power or
energy matters, otherwise plug it in. On the machine with chipwise, import the file:

    chipwise measurements import kit-results.json

Requests: {prompt} prompt tokens, {new} new tokens, batch {batch}; {threads} thread(s) unless `--threads` says
otherwise. `python3 kit.py --help` lists all options. If the script is stopped, the file has the results so far.

| file | model | role | runtime | size |
|---|---|---|---|---|
{rows}"""
