"""Writes training runs as a folder of jobs, which you run by hand or with a scheduler on any machine with chipwise.

The search writes the folder ``jobs/`` and stops when it needs results. Copy the folder to the machine that trains, and
run ``run_job.sh`` there for each line of ``todo.txt`` (``slurm_array.sh`` does this on a SLURM cluster). Then copy the
folder back and continue with ``search --resume``. Results are JSON, safetensors and token arrays; the search executes
nothing from the folder.

::

    jobs/
    ├── todo.txt                 the jobs that the search waits for, one path per line
    ├── run_job.sh               runs one of them: ./run_job.sh <job>
    ├── run_all.sh               runs all of them, one after another
    ├── slurm_array.sh           an example: sbatch --array=1-$(wc -l < todo.txt) slurm_array.sh
    ├── tokens/<digest>.npz      the text
    └── <architecture>/
        ├── <job>.json           the job: what is trained, on which text, for how long
        ├── <job>.result.json    its result, written when it has ended
        └── *.safetensors        weights, and the state that a longer job continues from
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from chipwise.core.digest import digest
from chipwise.core.fields import losses_renamed
from chipwise.core.files import read_json, storage, write_atomic, write_json
from chipwise.core.record import Record
from chipwise.core.workers import Event
from chipwise.errors import InputError, JobsMissing, TrainingDiverged, counted
from chipwise.training.loop.evaluate import checked, read
from chipwise.training.loop.worker import Job, TrainJob
from chipwise.training.trainers.local import LocalTrainer, ended, judged_here
from chipwise.training.trainers.protocol import BaseTrainer, Setup

SCHEMA, RESULT_SCHEMA = "chipwise.job/1", "chipwise.job-result/1"
STABLE = "stable.safetensors"  # state from which a longer run continues
FOLDER = "jobs"

RUN_JOB = """#!/bin/sh
# Runs one job of this folder: ./run_job.sh <architecture>/<job>.json
# It needs Python with chipwise and torch (pip install 'chipwise[search]'). A killed job continues when run again.
set -eu
cd "$(dirname "$0")"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MKL_NUM_THREADS="${MKL_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m chipwise.training.trainers.job_runner "$1"
"""
RUN_ALL = """#!/bin/sh
# Runs every job that todo.txt lists, one after another; finished ones are skipped.
set -eu
cd "$(dirname "$0")"
while read -r job; do ./run_job.sh "$job" || echo "$job failed" >&2; done < todo.txt
"""
SLURM = """#!/bin/bash
# An example for SLURM; fit partition, time and memory to your cluster, then:
#   sbatch --array=1-$(wc -l < todo.txt) slurm_array.sh
#SBATCH --job-name=chipwise
#SBATCH --time=02:00:00
#SBATCH --cpus-per-task=1
#SBATCH --mem=8G
#{gpu}SBATCH --gres=gpu:1
cd "$SLURM_SUBMIT_DIR"
./run_job.sh "$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" todo.txt)"
"""


@dataclass(frozen=True)
class Written:
    """A written job: the training run, and the text on which it trains."""

    path: Path  # <architecture>/<name>.json
    job: TrainJob
    identity: str

    @property
    def result(self) -> Path:
        """The result file of the job."""
        return self.path.with_name(f"{self.path.stem}.result.json")


class JobsTrainer(BaseTrainer):
    """Trainer that writes jobs, reads the results that were copied back, and lists the jobs that must be run.

    Args:
        setup: ``folder`` is the run's folder; ``device`` is the kind of device that trains.
    """

    accounts: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu", "tokens"})
    whole: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self._setup, self.folder = setup, setup.folder / FOLDER
        self._here = LocalTrainer(Setup(on="local", folder=setup.folder, workers=1))

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Runs jobs and yields their events; see :class:`~chipwise.training.trainers.protocol.Trainer`."""
        waiting: list[Written] = []
        spoilt: list[str] = []
        for place, job in enumerate(jobs):
            assert isinstance(job, TrainJob)
            if ended(job):
                yield from judged_here(self._here, place, job)
                continue
            written = self.write(job)
            if not written.result.exists():
                waiting.append(written)
                continue
            try:
                found = self.read(written)
                failed = found.record("failed").data
                values = failed or self.take(written, found)
            except InputError as error:
                spoilt.append(str(error))
                waiting.append(written)
                continue
            yield Event(job=place, kind="failed" if failed else "result", data=values)
        self._list(waiting)
        if spoilt:
            more = f" (and {counted(len(spoilt) - 1, 'other')})" if len(spoilt) > 1 else ""
            raise InputError(f"{spoilt[0]}{more}; all other results are kept")
        if waiting:
            names = ", ".join(self._name(item) for item in waiting[:3]) + (", …" if len(waiting) > 3 else "")
            raise JobsMissing(
                f"{counted(len(waiting), 'job')} to run in {self.folder}: {names}; run {self.folder}/run_all.sh (or "
                "slurm_array.sh) where you train, bring the folder back, and go on with --resume"
            )

    def close(self) -> None:
        """Stops the local worker that evaluates weight formats."""
        self._here.close()

    def _name(self, written: Written) -> str:
        return written.path.relative_to(self.folder).as_posix()

    def write(self, job: TrainJob) -> Written:
        """Writes a job with its inputs, unless it exists already; results are not deleted."""
        source = Path(job.tokens).read_bytes()
        text = hashlib.sha256(source).hexdigest()
        tokens = self.folder / "tokens" / f"{text[:16]}.npz"
        place = self.folder / job.arch.digest
        data = job.to_data() | {"tokens": f"../tokens/{tokens.name}", "folder": "."}
        identity = digest([SCHEMA, data, text])
        written = Written(place / f"{Path(job.result_name).stem.removeprefix('result-')}.json", job, identity)
        with storage(self.folder):
            if not tokens.exists():
                write_atomic(tokens, source)
            stable, carried = Path(job.folder) / STABLE, place / STABLE
            if stable.exists() and not carried.exists():
                write_atomic(carried, stable.read_bytes())
            write_json(written.path, {"schema": SCHEMA, "identity": identity, "text_sha256": text, "job": data})
        return written

    def take(self, written: Written, result: Record) -> dict[str, object]:
        """Copies a job's output to the run's folder; returns the same result as a job on this machine.

        Raises:
            InputError: The weights differ from those in the result, or belong to a different architecture.
        """
        place, target, name = written.path.parent, Path(written.job.folder), self._name(written)
        weights = place / Path(result.get("weights", str, "")).name
        try:
            content = weights.read_bytes()
        except OSError:
            raise InputError(f"{weights}: the weights of {name} are missing; copy them back too") from None
        if hashlib.sha256(content).hexdigest() != result.get("weights_sha256", str, ""):
            raise InputError(
                f"{weights}: these are not the final weights of {name} (an incomplete copy?); copy them back again"
            )
        _check_weights(weights, written.job)
        with storage(target):
            target.mkdir(parents=True, exist_ok=True)
            if (place / STABLE).exists():
                shutil.copy2(place / STABLE, target / STABLE)
            write_atomic(target / weights.name, content)
            write_json(
                target / written.job.result_name,
                {**result.record("training").data, "weights": str(target / weights.name)},
            )
        return {**losses_renamed(result.record("values").data), "weights": str(target / weights.name)}

    def read(self, written: Written) -> Record:
        """Reads the result of a job, and checks that it belongs to the job.

        Raises:
            InputError: The file is truncated, or belongs to a different job.
        """
        again = f"delete it and run the job again: ./run_job.sh {self._name(written)}"
        found = read_result(written.result)
        fields = ("failed",) if found.data.get("failed") else ("values", "training")
        whole = all(isinstance(found.data.get(name), dict) for name in fields)
        if found.data.get("schema") != RESULT_SCHEMA or not whole:
            raise InputError(f"{written.result}: is not a result of a job; {again}")
        if found.data.get("identity") != written.identity:
            raise InputError(f"{written.result}: belongs to a different run file, text or chipwise version; {again}")
        return found

    def _list(self, waiting: Sequence[Written]) -> None:
        """Writes the list of jobs to run, and the scripts that run them."""
        if not self.folder.exists():
            return
        with storage(self.folder):
            write_atomic(self.folder / "todo.txt", "".join(f"{self._name(item)}\n" for item in waiting))
            gpu = "" if self._setup.device == "cuda" else "# "
            scripts = {"run_job.sh": RUN_JOB, "run_all.sh": RUN_ALL, "slurm_array.sh": SLURM.format(gpu=gpu)}
            for name, text in scripts.items():
                write_atomic(self.folder / name, text)
                (self.folder / name).chmod(0o755)


def read_result(path: Path) -> Record:
    """Reads the JSON object that a job wrote.

    Raises:
        InputError: The file is missing, truncated, or not a result.
    """
    try:
        found = read_json(path)
    except InputError:
        raise InputError(
            f"{path}: cannot be read (an incomplete copy?); copy it back again, or run its job again"
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: is not a result of a job; copy it back again, or run its job again")
    return Record.of(found, file=str(path))


def _check_weights(path: Path, job: TrainJob) -> None:
    try:
        checked(read(path), job.arch)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def run_job(path: Path) -> dict[str, object]:
    """Runs the job in a file, and writes its result next to the file.

    Raises:
        InputError: The file does not contain a job, or the text in the folder is not the job's.
    """
    found = read_result(path)
    if found.data.get("schema") != SCHEMA or not isinstance(found.data.get("job"), dict):
        raise InputError(f"{path}: contains no job that this version of chipwise can run")
    base = path.parent
    data = found.record("job")
    tokens = (base / data.get("tokens", str)).resolve()
    if not tokens.exists() or hashlib.sha256(tokens.read_bytes()).hexdigest() != found.data.get("text_sha256"):
        raise InputError(f"{tokens}: is not the text of {path.name}; copy the whole folder of jobs again")
    job = TrainJob.from_data({**data.data, "tokens": str(tokens), "folder": str(base)})
    result: dict[str, object] = {"schema": RESULT_SCHEMA, "identity": found.data.get("identity")}
    try:
        values = job.run(lambda update: None)
    except TrainingDiverged as error:  # caused by the candidate, so the search records it
        result["failed"] = {"kind": type(error).__name__, "message": str(error)}
    else:
        weights = Path(Record.of(values).get("weights", str))
        result["values"] = {**values, "weights": weights.name}
        result["training"] = read_result(base / job.result_name).data
        result["weights"] = weights.name
        result["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    write_json(base / f"{path.stem}.result.json", result)
    return result
