"""Measures ONNX graphs and PyTorch modules compiled with TVM, in alternation with ONNX Runtime."""

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
    """Median seconds of a pass in TVM and in ONNX Runtime, timed in alternation."""

    seconds: float
    other_s: float  # in ONNX Runtime
    slower: Interval  # time here over that in ONNX Runtime, with its 90 % interval
    difference: float  # largest difference between outputs, as a share of the largest output


@dataclass(frozen=True, repr=False)
class Compiled(Result):
    """A measurement of a graph compiled with TVM."""

    measurement: Measurement
    metrics: dict[str, float]
    trials: int  # schedules that were tried for the graph's kernels
    race: Race | None = later(None)  # noqa: RUF009  (if they were tuned)

    def headline(self) -> str:
        """The model, the number of trials, and whether the machine was quiet."""
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
    """Tunes TVM's kernels for an ONNX graph or a PyTorch module, compiles it, and measures it.

    Args:
        model: An ONNX file with only ONNX's own operators, a folder with a ``model.onnx``, a PyTorch module, or the
            name of a module.
        trials: Total number of schedules to try for the graph's kernels. It includes schedules that earlier calls
            tried, even if those calls were stopped. 0: TVM's default schedules.
        threads: Threads of the runtime.
        shapes: Shapes of inputs that have open axes (axes without a fixed size), or of a module's arguments.
        values: Maps the names of inputs to constants; each constant fills its whole input.
        inputs: A ``.npz`` file with an array for each input, or a module's arguments. Default: random data.
        keep: Whether to save the result to the measurement store.
        on_progress: Called with the number of finished trials and of all trials.

    Raises:
        InputError: The model is neither an ONNX graph nor a module, or an argument is out of range.
        MeasurementError: TVM cannot import or run the graph.
        Unreachable: TVM's Python environment is missing; the message says how to create it.
    """
    if trials < 0:
        raise InputError(f"trials: must be 0 or more, not {trials}")
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
    """The ONNX file or module to compile; for a folder, the file inside.

    Raises:
        InputError: The model is neither an ONNX file nor a module.
    """
    if not isinstance(model, str | Path) or is_module(model) or Path(model).suffix == ".onnx":
        return model
    file = Path(model) / "model.onnx"
    if file.is_file():
        return file
    raise InputError(
        f"{name_of(model)}: tvm measures only ONNX files and PyTorch modules; write ONNX with chipwise export --to onnx"
    )
