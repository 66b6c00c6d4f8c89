"""Sessions of any ONNX graph in ONNX Runtime on the CPU: outputs for given data, times, and a profile by operator.

Runs in child processes, because a graph can crash the runtime.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnxruntime as ort

from chipwise.core.alternation import SETTLED, alternating_s
from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.workers import Message, answer_once
from chipwise.deploy.graphs.inputs import Feed, read_arrays
from chipwise.deploy.graphs.separate import write_separate
from chipwise.deploy.runtimes.onnx_session import open_file, session_options
from chipwise.errors import MeasurementError, line_of
from chipwise.model.graphs.profile import node_runs

Session: TypeAlias = ort.InferenceSession
FEWEST, MOST = 7, 3000  # timed passes of each of two files
PASSES_S = 1.0
SESSIONS, STUDENT_T = 6, 2.015  # pairs of sessions, and Student's t of a 90 % interval of their mean


def opened(
    path: str | Path,
    *,
    threads: int,
    profile_to: str | None = None,
    fused: bool = True,
    external: str | None = None,
) -> Session:
    """A session with all of the runtime's optimisations, or with none; ``external`` is the folder of external data.

    Raises:
        MeasurementError: The runtime refuses the file.
    """
    options = session_options(threads)
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if fused else level.ORT_DISABLE_ALL
    if profile_to is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile_to
    if external is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", external)
        return open_file(Path(path).read_bytes(), options, name=str(path))
    return open_file(path, options)


def outputs(session: Session, feed: Feed, path: str | Path) -> dict[str, AnyArray]:
    """Arrays of all outputs, by name.

    Raises:
        MeasurementError: The runtime cannot run the graph with this data.
    """
    names = [item.name for item in session.get_outputs()]
    try:
        return dict(zip(names, map(np.asarray, session.run(names, feed)), strict=True))
    except Exception as error:  # the runtime's errors have no common base class
        shapes = ", ".join(f"{name} {array.shape}" for name, array in feed.items())
        raise MeasurementError(f"{path}: ONNX Runtime failed with {shapes}: {line_of(error)}") from None


def clock_for(threads: int) -> Callable[[], float]:
    """Time of this thread alone with one thread, which other programs do not disturb; else the clock on the wall."""
    return time.thread_time if threads == 1 else time.perf_counter


def paired_s(
    first: Session, second: Session, feeds: Sequence[Feed], *, seconds: float, threads: int
) -> tuple[Float64Array, Float64Array]:
    """Seconds of each pass of two sessions in alternation, for about ``seconds`` in all; each pair has one feed."""
    return alternating_s(
        lambda i: first.run(None, feeds[i % len(feeds)]),
        lambda i: second.run(None, feeds[i % len(feeds)]),
        clock=clock_for(threads),
        fewest=FEWEST,
        most=MOST,
        seconds=seconds,
    )


def profile(
    path: str | Path,
    feed: Feed,
    *,
    threads: int,
    folder: Path,
    fused: bool = True,
    passes: int = 20,
    external: str | None = None,
) -> list[dict[str, object]]:
    """Operators by time as the runtime runs them after its fusions: name, type, median seconds, shapes in and out."""
    session = opened(path, threads=threads, profile_to=str(folder / "profile"), fused=fused, external=external)
    for _ in range(passes + SETTLED):
        session.run(None, feed)
    written = Path(session.end_profiling())
    seconds: dict[str, list[float]] = {}
    about: dict[str, dict[str, object]] = {}
    for run in node_runs(written):
        seconds.setdefault(run.node, []).append(run.seconds)
        shapes = {"inputs": [shape for _, shape in run.inputs], "outputs": [shape for _, shape in run.outputs]}
        about[run.node] = {"operator": run.operator, **shapes}
    written.unlink()
    calls = passes + SETTLED
    rows = [
        {"node": name, **about[name], "seconds": float(np.median(found)) * max(1, round(len(found) / calls))}
        for name, found in seconds.items()
    ]
    return sorted(rows, key=lambda row: -float(str(row["seconds"])))


def pass_times_s(session: Session, feed: Feed, *, threads: int, seconds: float = PASSES_S) -> list[float]:
    """Seconds of single passes, for about ``seconds`` in all."""
    clock = clock_for(threads)
    found: list[float] = []
    for _ in range(SETTLED):
        session.run(None, feed)
    until = time.perf_counter() + seconds
    while len(found) < FEWEST or (len(found) < MOST and time.perf_counter() < until):
        begun = clock()
        session.run(None, feed)
        found.append(clock() - begun)
    return found


def fusions(request: Message, feed: Feed, fused: int) -> Message:
    """What the runtime's fusions and grouped products are worth: passes with and without them, timed in turns.

    ``fused`` is the number of operators with both. Grouped products are timed one by one if the graph has some.
    """
    path, threads, external = request["model"], request["threads"], request.get("external")
    folder = Path(request["folder"])

    def in_turns(other: str | Path, name: str, *, fused: bool) -> Message:
        first = partial(opened, path, threads=threads, external=external)
        times, slower = _slower(
            first, partial(opened, other, threads=threads, fused=fused, external=external), feed, threads
        )
        rows = profile(other, feed, threads=threads, folder=folder, fused=fused, passes=1, external=external)
        return {"seconds": times[0], f"operators{name}": len(rows), f"seconds{name}": times[1], "slower": slower}

    found = {"operators": fused, **in_turns(path, "_without", fused=False)}
    groups = write_separate(path, folder / "separate.onnx")
    if groups:
        alone = in_turns(folder / "separate.onnx", "", fused=True)
        found["separate"] = {"groups": groups, **alone}
    return found


def _slower(
    first: Callable[[], Session], second: Callable[[], Session], feed: Feed, threads: int
) -> tuple[list[float], list[float]]:
    """Median seconds of a pass of both, and how many times as long the second one takes with its 90 % interval.

    Where a session's arrays lie changes its times by some per cent, so ``SESSIONS`` pairs are opened anew. The interval
    is Student's of the logarithms of their ratios.
    """
    pairs = []
    for _ in range(SESSIONS):
        taken = paired_s(first(), second(), [feed], seconds=2 * PASSES_S / SESSIONS, threads=threads)
        pairs.append([float(np.median(each)) for each in taken])
    times = np.array(pairs)
    logs = np.log(times[:, 1] / times[:, 0])
    half = STUDENT_T * logs.std(ddof=1) / np.sqrt(SESSIONS)
    return np.median(times, axis=0).tolist(), np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist()


def profiled(request: Message) -> Message:
    """Operators, and times of passes and worth of fusions if they are wanted, of the graph that ``request`` names."""
    feed, folder = read_arrays(request["feed"]), Path(request["folder"])
    path, threads, external = request["model"], request["threads"], request.get("external")
    pass_s = []
    if request.get("timed"):
        session = opened(path, threads=threads, external=external)
        outputs(session, feed, path)
        pass_s = pass_times_s(session, feed, threads=threads)
    rows = profile(path, feed, threads=threads, folder=folder, external=external)
    worth = {"fusions": fusions(request, feed, len(rows))} if request.get("fusions") else {}
    return {"rows": rows, "pass_s": pass_s, **worth}


if __name__ == "__main__":
    sys.exit(answer_once(profiled))
