"""Kits of a run: selects the models to pack, and stores the results that come back.

``RUN/kit/`` holds the kit (or only ``kit.json``, if the kit was written elsewhere) and ``results/``, with one file per
import. Results are checked against the current run each time they are read: results of another run, or of a model that
has changed since it was packed, are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest
from chipwise.core.files import read_json, read_text, write_atomic
from chipwise.deploy.export.exporters import export_for, suffix_of
from chipwise.deploy.kits import kits
from chipwise.deploy.kits.kits import Kit, KitModel, KitResults, KitRun, Role
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.report.record import RunRecord, load
from chipwise.design.run.folder import holds_run
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec, any_spec
from chipwise.design.run.winner import read_winner
from chipwise.design.targets.prompts import KEPT, with_longest
from chipwise.design.targets.sustained import SUSTAINED
from chipwise.errors import InputError, SpecError, StudyError, Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import to_data
from chipwise.model.space.designs import design_of

FOLDER, RESULTS = "kit", "results"
SUSTAINED_S = 600.0  # seconds of load for models whose speed under load is limited in the run
FINALISTS = 2  # rivals packed with the winner, from the candidates trained longest
LATENCIES = ("tpot_p50", "ttft_p50")  # metrics that order the front; the first one that a trial has is used


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """One model of a run: its design, and its exported files and weights."""

    trial: int
    role: Role
    design: Design
    files: tuple[Path, ...] = ()
    weights: Path | None = None  # a Hugging Face folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """The contents of a run's folder that a kit needs, read without opening the study."""

    path: Path
    spec: RunSpec | StartSpec
    identity: str
    record: RunRecord

    @classmethod
    def open(cls, path: str | Path) -> FinishedRun:
        """Reads the run in the folder ``path``.

        Raises:
            StudyError: The folder holds no run, or a run without a record.
        """
        folder = Path(path)
        if not holds_run(folder):
            raise StudyError(f"{folder}: this folder holds no run; give a folder such as runs/clinic")
        if not (folder / "record.json").is_file():
            raise StudyError(f"{folder}: the run has no record.json yet; write it with: chipwise report {folder}")
        held = read_json(folder / "spec.json")
        if not isinstance(held, Mapping) or "identity" not in held:
            raise SpecError("chipwise did not write this file", file=str(folder / "spec.json"))
        spec = any_spec(held.get("spec"), file=str(folder / "spec.json"))
        return cls(path=folder, spec=spec, identity=str(held["identity"]), record=load(folder / "record.json"))

    def design(self, trial: int) -> Design | None:
        """The design of a trial; None if there is no such trial, or the record lacks its design."""
        found = self.record.trial(trial)
        winner = self._winner()
        if trial == self.record.winner and winner is not None:
            return winner
        if found is None or not isinstance(self.spec, RunSpec) or not found.choices:
            return None
        return design_of(found.choices, spec=self.spec.space, name=f"{self.spec.name}-{trial}")

    def _winner(self) -> Design | None:
        winner = read_winner(self.path / "winner")
        return None if winner is None else winner.design

    def chosen(self, candidates: int) -> list[RunModel]:
        """Models to pack: the winner, the reference design, rivals of the winner, and some designs of the front.

        Rivals are at most ``FINALISTS`` of the candidates that were trained longest. At most ``candidates`` designs of
        the front are added, spread evenly over latency. If ``candidates`` is 0, only winner and reference design are
        packed.

        Raises:
            StudyError: The run has nothing to measure yet.
        """
        record = self.record
        roles: dict[int, Role] = {}
        for number, role in ((record.winner, "winner"), (record.baseline, "reference")):
            if number is not None:
                roles.setdefault(number, cast(Role, role))
        for number in self._finalists() if candidates else ():
            roles.setdefault(number, "finalist")
        front = [number for number in sorted(record.front, key=self._latency_s) if number not in roles]
        count = min(candidates, len(front))
        for i in range(count):
            roles.setdefault(front[round(i * (len(front) - 1) / max(1, count - 1))], "front")
        models = [
            self._model(number, role, design)
            for number, role in roles.items()
            if (design := self.design(number)) is not None
        ]
        if not models:
            raise StudyError(f"{self.path}: the run has neither a winner nor a Pareto front yet; go on with --resume")
        return models

    def _finalists(self) -> list[int]:
        """The best ``FINALISTS`` + 1 of the candidates that were trained longest; the winner may be one of them."""
        trained = [
            (trial.rung, -(trial.quantised_loss or math.inf), trial.number)
            for trial in self.record.trials
            if trial.rung is not None and trial.state != "failed" and trial.number != self.record.baseline
        ]
        longest = max((rung for rung, *_ in trained), default=0)
        best = sorted((item for item in trained if item[0] == longest), reverse=True)
        return [number for *_, number in best[: FINALISTS + 1]]

    def _latency_s(self, number: int) -> float:
        trial = self.record.trial(number)
        if trial is None:
            return 0.0
        known = {metric: item.value for metric, item in trial.predicted.items()} | (trial.measured or {})
        return next((known[metric] for metric in LATENCIES if metric in known), 0.0)

    def _model(self, number: int, role: Role, design: Design) -> RunModel:
        places = [self.path / "trials" / str(number)]
        if number == self.record.winner:
            places.append(self.path / "winner")
        files = [place / f"model{suffix}" for place in places for suffix in (".onnx", ".gguf")]
        weights = self.path / "winner" / "model.safetensors"
        return RunModel(
            trial=number,
            role=role,
            design=design,
            files=tuple(file for file in files if file.is_file()),
            weights=weights.parent if number == self.record.winner and weights.is_file() else None,
        )


def pack_run(
    path: str | Path,
    *,
    out: str | Path | None = None,
    device: str | None = None,
    machine: str | None = None,
    runtimes: Sequence[str] = (),
    candidates: int = 6,
    threads: int | None = None,
    gpu_layers: int = 0,
    created: str,
    version: str,
    on_note: Callable[[str], None] = lambda text: None,
) -> tuple[Path, Kit]:
    """Packs models of a run; returns the kit's folder and the contents of ``kit.json``.

    Exported files of the run are copied. Other models are exported with random weights, since measurements do not
    depend on the values.

    Args:
        path: The run's folder.
        out: Folder of the kit. Default: ``RUN/kit``.
        device: The user's name for the device.
        machine: The machine's name, if only that machine may run the kit.
        runtimes: Runtimes to pack files for. Default: the run's own.
        candidates: Largest number of designs from the front to pack, in addition to winner and reference design.
        threads: Threads of the runtime. Default: the run's own.
        gpu_layers: Number of layers that llama.cpp runs on the GPU; -1 for all.
        created: Time of creation, in ISO 8601.
        version: Version of chipwise.
        on_note: Called with a message about each model that cannot be exported for a runtime.

    Raises:
        StudyError: The folder holds no run, or its run has nothing to measure.
        Unsupported: The kit's script cannot measure in one of ``runtimes``, or none of the models can be exported.
    """
    run = FinishedRun.open(path)
    wanted = tuple(runtimes) or (run.spec.target.runtime,)
    check_runtimes(wanted)
    folder = Path(out) if out is not None else run.path / FOLDER
    kits.check_folder(folder)
    models, reasons = [], []
    for model in run.chosen(candidates):
        for runtime in wanted:
            try:
                models.append(_packed(model, runtime, folder, run.path))
            except Unsupported as error:
                reasons.append(str(error))
                on_note(f"trial {model.trial} is left out: {error}")
    if not models:
        raise Unsupported(f"no model of the run can be packed: {'; '.join(dict.fromkeys(reasons))}")
    kit = Kit(
        created=created,
        version=version,
        name=run.spec.name,
        workload=run.spec.workload,
        models=tuple(models),
        threads=threads or run.spec.target.threads,
        seed=run.spec.seed,
        device=device,
        machine=machine,
        gpu_layers=gpu_layers,
        prompt_p99=run.spec.prompt_p99 if isinstance(run.spec, RunSpec) else None,
        sustained_s=SUSTAINED_S if SUSTAINED in run.spec.constraints else 0.0,
        run=KitRun(name=run.spec.name, identity=run.identity, folder=str(run.path.resolve())),
    )
    kits.write(folder, kit)
    if folder.resolve() != (run.path / FOLDER).resolve():
        write_atomic(run.path / FOLDER / kits.MANIFEST, (folder / kits.MANIFEST).read_bytes())
    return folder, kit


def check_runtimes(names: Sequence[str]) -> None:
    """Checks that a kit's script can measure in these runtimes.

    Raises:
        Unsupported: The script cannot measure in one of the runtimes.
    """
    for name in names:
        if name not in kits.RUNTIMES:
            raise Unsupported(
                f"a kit measures {' and '.join(kits.RUNTIMES)}, not {name}; name one of these with --runtime, or "
                "measure over ssh (chipwise measure --remote user@host) or in the device's browser (chipwise measure "
                "--listen 0.0.0.0:8000)"
            )


def _packed(model: RunModel, runtime: str, folder: Path, run: Path) -> KitModel:
    """Copies or exports one model to the kit's folder."""
    suffix = suffix_of(runtime)
    target = folder / "models" / f"{model.trial}{suffix}"
    source = next((file for file in model.files if file.suffix == suffix), None)
    made_from: dict[str, str] = {}
    if source is not None:
        write_atomic(target, source.read_bytes())
        made_from[source.relative_to(run).as_posix()] = kits.sha256_of(source)
    else:
        weights: Mapping[str, AnyArray] | None = None
        if model.weights is not None:
            from chipwise.deploy.export.hf import load_pretrained

            weights = load_pretrained(model.weights)[1]
            stored = model.weights / "model.safetensors"
            made_from[stored.relative_to(run).as_posix()] = kits.sha256_of(stored)
        export_for(runtime, model.design, target.parent, weights=weights, stem=str(model.trial))
    return described(target, folder, model.design, runtime, role=model.role, trial=model.trial, made_from=made_from)


def described(
    file: Path,
    folder: Path,
    design: Design | None,
    runtime: str,
    *,
    role: Role = "model",
    trial: int | None = None,
    made_from: Mapping[str, str] | None = None,
) -> KitModel:
    """The entry of an exported file in the kit's list."""
    return KitModel(
        file=file.relative_to(folder).as_posix(),
        sha256=kits.sha256_of(file),
        bytes=file.stat().st_size,
        runtime=runtime,
        name=file.stem if design is None else design.arch.name,
        design="" if design is None else design.digest,
        weights="fp32" if design is None else design.weights,
        arch=None if design is None else to_data(design.arch),
        role=role,
        trial=trial,
        made_from=made_from or {},
    )


def file_results(
    run_folder: str | Path, path: str | Path, *, on_note: Callable[[str], None] = lambda text: None
) -> KitResults:
    """Checks the results in ``path`` against the run, and keeps a copy of the file in the run's folder.

    ``on_note`` is called with a message about each model that has changed since it was packed; its results are ignored.

    Raises:
        SpecError: The file is damaged or belongs to another run; earlier results with the same device name come from
            another machine; or all models in the file have changed since they were packed.
        StudyError: The folder holds no run.
    """
    run, results = FinishedRun.open(run_folder), kits.read_results(path)
    check_run(run, results, file=str(path))
    for other, known in _filed(run.path):
        if known.device == results.device and known.machine.name != results.machine.name:
            raise SpecError(
                f"measured on {results.machine.name}, but earlier results of this run ({other.name}) use the same "
                f"device name for {known.machine.name}; give one of the two another name with: chipwise kit "
                f"{run.path} --device NAME",
                file=str(path),
                field="machine.name",
            )
    stale = [text for model, _ in results.measurements() if (text := stale_because(run, results, model)) is not None]
    if stale and len(stale) == len(results.measurements()):
        raise SpecError(stale[0], file=str(path))
    for text in stale:
        on_note(text)
    content = read_text(path)
    day = re.sub(r"[^0-9TZ]", "", results.created)
    write_atomic(run.path / FOLDER / RESULTS / f"{day}-{digest(content, length=8)}.json", content)
    return results


def check_run(run: FinishedRun, results: KitResults, *, file: str) -> None:
    """Checks that results belong to this run.

    Raises:
        SpecError: The results belong to another run, or to no run.
    """
    theirs = results.kit.run
    if theirs is None or theirs.identity != run.identity:
        what = "of no run" if theirs is None else f"of another run ({theirs.name}, in {theirs.folder})"
        raise SpecError(f"these are results {what}, not of {run.path}", file=file, field="kit.run")


def stale_because(run: FinishedRun, results: KitResults, model: KitModel) -> str | None:
    """Message that a model has changed since it was packed, so its results are useless; None if it has not changed."""
    change = _changed(run, model)
    if change is None:
        return None
    return (
        f"{model.file}, trial {model.trial}, has changed since the kit was packed ({results.kit.created}): {change}; "
        f"pack it again with: chipwise kit {run.path}"
    )


def _changed(run: FinishedRun, model: KitModel) -> str | None:
    """How a packed model differs from the run's model; None if it does not."""
    design = None if model.trial is None else run.design(model.trial)
    if design is None:
        return "the run has no such trial now"
    if design.digest != model.design:
        return "it is another design now"
    for name, known in model.made_from.items():
        if name.startswith("winner/") and model.trial != run.record.winner:
            continue  # replaced by another model; this file is unchanged
        file = (run.path / name).resolve()
        if not file.is_relative_to(run.path.resolve()):
            return f"{name} is not a file of the run"
        if file.is_file() and kits.sha256_of(file) != known:
            return f"{name} was written again"
    return None


def _filed(run: Path) -> list[tuple[Path, KitResults]]:
    """All results in a run's folder, oldest first."""
    found = [(file, kits.read_results(file)) for file in sorted((run / FOLDER / RESULTS).glob("*.json"))]
    return sorted(found, key=lambda item: item[1].created)


def kit_results(
    run_folder: str | Path,
    *,
    device: str | None = None,
    runtime: str | None = None,
    target: str | None = None,
    on_note: Callable[[str], None] = lambda text: None,
) -> dict[int, Measurement]:
    """Maps trial numbers to measurements from imported kits; if a trial has several, the newest one counts.

    Args:
        run_folder: The run's folder.
        device: Only results under this device name.
        runtime: Only results in this runtime. Default: the run's own.
        target: Device of the run. Results of a machine that reports another chip are left out, whatever device name the
            kit gives.
        on_note: Called with a message about each result that no longer counts.

    Raises:
        StudyError: The folder holds no run.
        SpecError: A file of results is damaged.
    """
    path = Path(run_folder)
    if not any((path / FOLDER / RESULTS).glob("*.json")):
        return {}
    run = FinishedRun.open(path)
    wanted = runtime or run.spec.target.runtime
    found: dict[int, Measurement] = {}
    for file, results in _filed(path):
        if device is not None and results.device_name != device:
            continue
        check_run(run, results, file=str(file))
        other = None if target is None else kits.another_device(target, results.machine)
        if other is not None:
            on_note(f"results of {other} do not count: the run designs for {target}")
            continue
        longest, shares = results.longest(), _shares_kept(run, results, on_note)
        for model, measurement in results.measurements():
            if (reason := stale_because(run, results, model)) is not None:
                on_note(f"{file.name}: {reason}")
            elif model.runtime == wanted and model.trial is not None:
                if model.file in longest:
                    measurement = with_longest(measurement, longest[model.file])
                if model.file in shares:
                    environment = {**measurement.environment, KEPT: shares[model.file]}
                    measurement = replace(measurement, environment=environment)
                found[model.trial] = measurement
    return found


def _shares_kept(run: FinishedRun, results: KitResults, on_note: Callable[[str], None]) -> dict[str, float]:
    """Maps each model file to the share of speed that remains under sustained load at the run's ambient temperature."""
    found = {}
    ambient_c = run.spec.target.ambient_c
    for item in results.sustained:
        if (thermal := item.thermal) is None:
            continue
        try:
            found[item.file] = thermal.sustained_share if ambient_c is None else thermal.share_at(ambient_c)
        except Unsupported as error:
            on_note(f"{item.file}: {error}")
    return found


def run_of(results: KitResults) -> Path | None:
    """Folder of the run that the kit was packed from; None if the folder has moved."""
    named = results.kit.run
    if named is None:
        return None
    path = Path(named.folder)
    try:
        return path if FinishedRun.open(path).identity == named.identity else None
    except (StudyError, InputError):
        return None
