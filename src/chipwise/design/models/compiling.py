"""Measures ONNX graphs and modules as TVM compiles them, and in turns with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.environments import program
from chipwise.core.fields import later
from chipwise.core.files import build
from chipwise.core.places import cache_folder
from chipwise.core.results import Result
from chipwise.deploy.graphs.inputs import write_arrays
from chipwise.deploy.graphs.modules import Inputs, Module, is_module, name_of, on_disk
from chipwise.deploy.graphs.reading import feed_for
from chipwise.deploy.measure import harness
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.runtimes import missing
from chipwise.design.models.measuring import ONE_PASS, Interval, beside, timed
from chipwise.errors import InputError, Unreachable

RUNTIME, MODULE = "tvm", "chipwise.deploy.runtimes.tvm_program"
USUAL_TRIALS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Passes in turns with ONNX Runtime: median seconds of one."""

    seconds: float
    other_s: float  # in ONNX Runtime
    slower: Interval  # time here over that in ONNX Runtime, with its 90 % interval
    difference: float  # greatest of the outputs, as a share of the largest


@dataclass(frozen=True, repr=False)
class Compiled(Result):
    """A graph as TVM ran it."""

    measurement: Measurement
    metrics: dict[str, float]
    trials: int  # schedules that were tried for its kernels
    race: Race | None = later(None)  # noqa: RUF009  (if they were tuned)

    def headline(self) -> str:
        """The model, its trials, and whether the machine was quiet."""
        found = self.measurement
        tried = f"{self.trials:,} trials" if self.trials else "untuned"
        return f"{found.name} in {found.runtime} on {found.device}, {tried}, {'clean' if found.clean else 'not clean'}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per metric."""
        return beside(self.metrics, {})


def measure_compiled(
    model: str | Path | Module,
    *,
    trials: int = USUAL_TRIALS,
    threads: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: str | Path | Inputs | None = None,
    keep: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compiled:
    """Measures an ONNX graph or a PyTorch module in TVM, whose kernels are tuned first.

    Args:
        model: An ONNX file of ONNX's own operators, a folder with a ``model.onnx``, a module, or the name of one.
        trials: Schedules to try for the graph's kernels, together with those that earlier calls tried, also calls that
            were stopped. 0: TVM's own schedules, untuned.
        threads: Threads of the runtime.
        shapes: Shapes of inputs with open axes, or of a module's arguments.
        values: Values that fill whole inputs.
        inputs: A ``.npz`` file with an array for each input, or a module's arguments. Default: random data.
        keep: Whether to save the result to the measurement store.
        on_progress: Called with the number of trials so far and of all.

    Raises:
        InputError: The model is no such graph, or an argument is out of range.
        MeasurementError: TVM cannot import or run the graph.
        Unreachable: TVM's Python environment is missing; the message says how to make it.
    """
    if trials < 0:
        raise InputError(f"trials: is {trials}; it must be 0 or more")
    harness.check_threads(threads)
    model = _graph_of(model)
    if lack := missing(RUNTIME):
        raise Unreachable(f"{RUNTIME}: {lack}")
    with (
        on_disk(model, inputs=inputs, shapes=shapes, values=values) as file,
        tempfile.TemporaryDirectory() as room,
    ):
        feed = Path(room) / "feed.npz"
        write_arrays(feed, feed_for(file.path, file.shapes, file.values, file.data))
        compiler = program(RUNTIME, MODULE, threads=threads)
        asked: dict[str, object] = {"model": str(Path(file.path).absolute()), "feed": str(feed)}
        options: dict[str, object] = {"feed": str(feed)}
        if trials:
            tuned = compiler.ask(
                "tune",
                lambda told: on_progress(told["done"], told["of"]),
                **asked,
                room=str(cache_folder() / "tvm-schedules"),
                trials=trials,
            )
            options["schedules"] = asked["schedules"] = tuned["folder"]
        found = timed(file.path, None, ONE_PASS, runtime=RUNTIME, threads=threads, keep=keep, options=options)
        race = build(Race, compiler.ask("race", **asked), field="race") if trials else None
    return Compiled(measurement=found.measurement, metrics=found.metrics, trials=trials, race=race)


def _graph_of(model: str | Path | Module) -> str | Path | Module:
    """The ONNX file or module that is to be compiled; of a folder its file.

    Raises:
        InputError: It is neither.
    """
    if not isinstance(model, str | Path) or is_module(model) or Path(model).suffix == ".onnx":
        return model
    file = Path(model) / "model.onnx"
    if file.is_file():
        return file
    raise InputError(
        f"{name_of(model)}: tvm measures ONNX files and PyTorch modules; write one with: chipwise export --to onnx"
    )
