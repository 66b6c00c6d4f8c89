"""Sessions of any ONNX graph in ONNX Runtime on the CPU: outputs for given data, and times.

This module runs in child processes, because a graph can crash the runtime. The peak memory of one of these processes is
reported as the memory of serving, so the module imports only numpy and the runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnxruntime as ort

from chipwise.core.alternation import SETTLED, alternating_s
from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.deploy.graphs.inputs import Feed
from chipwise.deploy.runtimes.onnx_session import open_file, session_options
from chipwise.errors import MeasurementError, line_of

Session: TypeAlias = ort.InferenceSession
FEWEST, MOST = 7, 3000  # timed passes of each session of a pair
PASSES_S = 1.0


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
    """For one thread, a clock of the calling thread's processor time, which excludes other programs; else wall time."""
    return time.thread_time if threads == 1 else time.perf_counter


def paired_s(
    first: Session, second: Session, feeds: Sequence[Feed], *, seconds: float, threads: int
) -> tuple[Float64Array, Float64Array]:
    """Seconds of each pass of two alternating sessions, for about ``seconds`` in all; each pair has the same feed."""
    return alternating_s(
        lambda i: first.run(None, feeds[i % len(feeds)]),
        lambda i: second.run(None, feeds[i % len(feeds)]),
        clock=clock_for(threads),
        fewest=FEWEST,
        most=MOST,
        seconds=seconds,
    )


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
