"""Child process that writes, runs and times ONNX files for :mod:`chipwise.design.quantize`, one job at a time.

``bench.py`` starts it with ``python -m chipwise.design.quantize.worker``. If a graph crashes the runtime, only the
current job is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from chipwise.core.digest import plain
from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.graphs import sessions
from chipwise.deploy.graphs.inputs import Feed, read_arrays, write_arrays
from chipwise.deploy.graphs.profiling import profile
from chipwise.design.quantize.node_formats import Maker, prepare


class Worker:
    """Does the jobs of the child process; a job's name is the name of the method that does it."""

    def start(self, setup: Message) -> None:
        """Stores the settings for all jobs, without loading a file."""
        self._setup = setup
        self._maker: Maker | None = None
        self._feeds: list[Feed] = []

    def run(self, job: Message, report: Report) -> object:
        """Does one job, and returns its result."""
        jobs: dict[str, Callable[..., object]] = {
            "prepare": self.prepare,
            "make": self.make,
            "outputs": self.outputs,
            "time": self.time,
            "shares": self.shares,
        }
        return jobs[job.pop("do")](**job)

    def prepare(self, optimise: bool, fix: bool) -> object:
        """Writes the prepared graph; returns its operators with weights. With ``fix``, open axes get fixed sizes."""
        setup = self._setup
        shapes = setup["shapes"] if fix else {}
        found = prepare(setup["source"], setup["prepared"], values=setup["values"], shapes=shapes, optimise=optimise)
        self._opened(setup["prepared"])  # raises an error if the runtime cannot load the graph
        return plain(found)

    def make(self, formats: Mapping[str, str], out: str) -> int:
        """Writes the file with these formats; returns its size in bytes."""
        if self._maker is None:
            feeds = self._samples()
            calibrated = [feeds[i] for i in self._setup["calibrated"]]
            self._maker = Maker(self._setup["prepared"], calibrated, Path(self._setup["folder"]))
        return self._maker.make(formats, out)

    def outputs(self, model: str, samples: list[int], out: str) -> None:
        """Writes the outputs of ``model`` for ``samples`` to a ``.npz`` file."""
        session, feeds = self._opened(model), self._samples()
        found = {i: sessions.outputs(session, feeds[i], model) for i in samples}
        write_arrays(out, {f"{i}/{name}": array for i, each in found.items() for name, array in each.items()})

    def time(self, first: str, second: str, samples: list[int], seconds: float) -> dict[str, float]:
        """Times two files in alternating passes.

        Returns:
            ``first_s``: the first file's median seconds. ``ratio``: the median of the second file's time divided by the
            first file's. ``wins``: the share of passes in which the second file is faster.
        """
        feeds = self._samples()
        a, b = sessions.paired_s(
            self._opened(first),
            self._opened(second),
            [feeds[i] for i in samples],
            seconds=seconds,
            threads=self._setup["threads"],
        )
        return {"first_s": float(np.median(a)), "ratio": float(np.median(b / a)), "wins": float(np.mean(b < a))}

    def shares(self, model: str, sample: int) -> dict[str, float]:
        """Seconds of each node of ``model``, measured without the runtime's fusions."""
        folder = Path(self._setup["folder"])
        feed = self._samples()[sample]
        rows = profile(model, feed, threads=self._setup["threads"], folder=folder, fused=False)
        return {str(row["node"]): float(str(row["seconds"])) for row in rows}

    def _samples(self) -> list[Feed]:
        if not self._feeds:
            for key, array in read_arrays(self._setup["samples"]).items():
                number, _, name = key.partition("/")
                self._feeds += [{} for _ in range(int(number) + 1 - len(self._feeds))]
                self._feeds[int(number)][name] = array
        return self._feeds

    def _opened(self, model: str) -> sessions.Session:
        return sessions.opened(model, threads=self._setup["threads"])


if __name__ == "__main__":
    worker = Worker()
    serve(worker.run, start=worker.start)
