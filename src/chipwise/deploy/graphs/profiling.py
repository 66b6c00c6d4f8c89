"""The profiling process: times an ONNX graph's operators, and measures what fusions and grouped matrix products save.

``python -m chipwise.deploy.graphs.profiling`` reads a request from stdin and writes one reply to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from chipwise.core.alternation import SETTLED
from chipwise.core.workers import Message, answer_once
from chipwise.deploy.graphs.inputs import Feed, read_arrays
from chipwise.deploy.graphs.separate import write_separate
from chipwise.deploy.graphs.sessions import PASSES_S, Session, opened, outputs, paired_s, pass_times_s
from chipwise.model.graphs.profile import node_runs

SESSIONS, STUDENT_T = 6, 2.015  # pairs of sessions, and Student's t of a 90 % interval of their mean


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
    """Operators as the runtime runs them, slowest first: name, type, median seconds, shapes of inputs and outputs."""
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


def fusions(request: Message, feed: Feed, fused: int) -> Message:
    """Alternates passes with and without the runtime's fusions, then with and without grouped products, and times them.

    ``fused`` is the number of operators that the runtime runs for the unchanged graph, with its fusions. If the graph
    has no grouped products (:mod:`.separate` says which operators these are), only the fusions are measured.
    """
    path, threads, external = request["model"], request["threads"], request.get("external")
    folder = Path(request["folder"])

    def in_turns(other: str | Path, name: str, *, fused: bool) -> Message:
        first = partial(opened, path, threads=threads, external=external)
        times, ratio = slower(
            first, partial(opened, other, threads=threads, fused=fused, external=external), feed, threads
        )
        rows = profile(other, feed, threads=threads, folder=folder, fused=fused, passes=1, external=external)
        return {"seconds": times[0], f"operators{name}": len(rows), f"seconds{name}": times[1], "slower": ratio}

    found = {"operators": fused, **in_turns(path, "_without", fused=False)}
    groups = write_separate(path, folder / "separate.onnx")
    if groups:
        alone = in_turns(folder / "separate.onnx", "", fused=True)
        found["separate"] = {"groups": groups, **alone}
    return found


def slower(
    first: Callable[[], Session], second: Callable[[], Session], feed: Feed, threads: int
) -> tuple[list[float], list[float]]:
    """Returns both sessions' median seconds of a pass, and the ratio second / first with its 90 % interval.

    The memory addresses of a session's arrays change its times by some per cent, so both sessions are opened
    ``SESSIONS`` times. The interval is Student's, from the logarithms of the ratios.
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
    """Profiles the operators of the graph that ``request`` names; times passes and fusions too if requested."""
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
