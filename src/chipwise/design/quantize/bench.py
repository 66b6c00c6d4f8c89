"""Writes, runs and times ONNX files in a child process; results are stored, so that a stopped run can continue."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest, plain
from chipwise.core.files import build, storage, write_json
from chipwise.core.workers import WorkerPool
from chipwise.deploy.graphs.inputs import Samples, write_arrays
from chipwise.design.quantize.answers import earlier
from chipwise.design.quantize.node_choices import Formats, Product
from chipwise.errors import MeasurementError

T = TypeVar("T")
SILENT_S = 900.0  # seconds without a sign of life after which a job counts as hung
FILES = 4  # files that are kept because they may be needed again
STATE = "state.json"


class Setup(TypedDict):
    """Settings that are the same for all jobs of the child process."""

    source: str
    prepared: str
    samples: str  # feeds by number: ``3/x``
    calibrated: list[int]  # numbers of the samples for calibration
    values: Mapping[str, float]
    shapes: Mapping[str, list[int]]
    threads: int
    folder: str


class Prepared(TypedDict):
    """A prepared graph's products (operators with weights) as plain data, and a note on skipped steps."""

    products: list[dict[str, object]]
    note: str


class Bench:
    """A context manager with a child process and the results so far; its exit ends the process.

    Args:
        folder: Folder for files and results.
        identity: Digest of everything that the results depend on.
        setup: Settings for all jobs of the child process.
        samples: Inputs of the graph, for calibration, scoring and timing.
        resume: Whether to use the results of an earlier run in the folder.

    Raises:
        StudyError: The folder contains another run, or it contains this run but ``resume`` is false.
    """

    def __init__(self, folder: Path, identity: str, setup: Setup, samples: Samples, *, resume: bool) -> None:
        self.folder, self._setup = folder, setup
        self._state = folder / STATE
        self._files: list[str] = []  # digests of the formats of existing files, latest last
        held = earlier(self._state, identity, depends_on="file, data or settings", resume=resume)
        self._kept: dict[str, dict[str, object]] = plain(held.get("answers", {}))
        self._identity = identity
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
            arrays = {f"{i}/{name}": array for i, feed in enumerate(samples.feeds) for name, array in feed.items()}
            write_arrays(folder / "samples.npz", arrays)
        command = [sys.executable, "-m", "chipwise.design.quantize.worker"]
        environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(setup["threads"]))
        self._pool = WorkerPool(
            command, 1, name="quantising process", silence_s=SILENT_S, setup=dict(setup), environment=environment
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()

    def ask(self, job: str, **fields: object) -> object:
        """Passes a job to the child process, and returns the result.

        Raises:
            MeasurementError: The job failed, or the child process died.
        """
        self._pool.submit({"do": job, **fields})
        for event in self._pool.events():
            if event.kind == "result":
                return plain(event.data)
            if event.kind == "failed":
                raise MeasurementError(str(event.data.get("message")))
        raise MeasurementError("the child process that quantises ended without a result")

    def once(self, key: str, answer: Callable[[], T]) -> T:
        """Returns the stored result for ``key``; if there is none, calls ``answer`` and stores its result or failure.

        Raises:
            MeasurementError: ``answer`` fails now, or failed in an earlier session.
        """
        if key not in self._kept:
            try:
                self._kept[key] = {"answer": answer()}
            except MeasurementError as error:
                self._kept[key] = {"error": str(error)}
            write_json(self._state, {"identity": self._identity, "answers": self._kept})
        if "error" in self._kept[key]:
            raise MeasurementError(str(self._kept[key]["error"]))
        found: T = plain(self._kept[key]["answer"])
        return found

    def products(self) -> tuple[list[Product], str]:
        """The prepared graph's products (operators with weights), and a note on steps at which the runtime failed.

        Raises:
            MeasurementError: The runtime cannot load the graph.
        """
        found = self.once("products", self._prepared)
        if not Path(self._setup["prepared"]).exists():
            self._prepared()
        return [build(Product, each, field="products") for each in found["products"]], found["note"]

    def _prepared(self) -> Prepared:
        """Prepares the graph; leaves out steps at which the runtime fails."""
        wanted = bool(self._setup["shapes"])
        note = ""
        for optimise, fix in ((True, True), (True, False), (False, False)):
            with contextlib.suppress(MeasurementError):
                found: list[dict[str, object]] = plain(self.ask("prepare", optimise=optimise, fix=fix))
                return {"products": found, "note": note}
            note = "the runtime fails when " + ("open axes are fixed" if fix and wanted else "constants are folded")
        found = plain(self.ask("prepare", optimise=False, fix=False))
        return {"products": found, "note": note}

    def file(self, formats: Formats) -> str:
        """Path of the file with these formats. Only the ``FILES`` files that were requested last stay in the folder.

        Raises:
            MeasurementError: The file cannot be written.
        """
        if not formats:
            return self._setup["prepared"]
        key = digest(dict(formats))
        path = self.folder / f"{key}.onnx"
        if key not in self._files:
            self.ask("make", formats=dict(formats), out=str(path))
        self._files = [*(each for each in self._files if each != key), key]
        while len(self._files) > FILES:
            (self.folder / f"{self._files.pop(0)}.onnx").unlink(missing_ok=True)
        return str(path)

    def outputs(self, model: str, samples: Sequence[int]) -> dict[int, dict[str, AnyArray]]:
        """The outputs of the file ``model`` for each of these samples.

        Raises:
            MeasurementError: The runtime cannot load or run the file.
        """
        path = self.folder / "outputs.npz"
        self.ask("outputs", model=model, samples=list(samples), out=str(path))
        found: dict[int, dict[str, AnyArray]] = {i: {} for i in samples}
        with np.load(path, allow_pickle=False) as held:
            for key in held.files:
                number, _, name = key.partition("/")
                found[int(number)][name] = held[key]
        path.unlink()
        return found

    def timed(self, first: str, second: str, samples: Sequence[int], seconds: float) -> Mapping[str, float]:
        """Times two files in alternation; see :meth:`chipwise.design.quantize.worker.Worker.time`."""
        job = {"first": first, "second": second, "samples": list(samples), "seconds": seconds}
        found: Mapping[str, float] = plain(self.ask("time", **job))
        return found

    def shares(self, sample: int) -> Mapping[str, float]:
        """Seconds of each node of the prepared graph, measured without the runtime's fusions."""
        found: Mapping[str, float] = plain(self.ask("shares", model=self._setup["prepared"], sample=sample))
        return found
