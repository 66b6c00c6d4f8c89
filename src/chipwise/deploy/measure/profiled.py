"""Measures this machine node by node: ONNX Runtime's own profile next to the calibrated prediction.

The runtime fuses and renames nodes, so measured time is summed by operator: a node's place in the model without the
layer number. The profiler costs time, so the sums exceed an unprofiled pass.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.deploy.export.exporters import export_for
from chipwise.model.arch.design import Design
from chipwise.predict.explain.question import Case

PASSES = 20  # profiled runs of each phase, after warming up
WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An operator, summed over all layers: predicted and measured seconds of one pass."""

    operator: str
    predicted_s: float
    measured_s: float
    nodes: int  # nodes that the runtime ran for it in one pass


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPhase:
    """One phase: its operators, largest measured time first, and their sums."""

    phase: str
    rows: tuple[Row, ...]
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredExplanation:
    """Results of the runtime's profiler, by phase."""

    model: str
    runtime: str
    phases: tuple[MeasuredPhase, ...]


def measure_case(case: Case, *, threads: int, seed: int) -> MeasuredExplanation:
    """Exports the model with random weights, profiles it in ONNX Runtime, and joins predicted and measured times.

    Raises:
        Unsupported: The model cannot be exported.
        MissingExtra: onnxruntime is not installed.
    """
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

    question = case.question
    design = Design(arch=question.arch, weights=question.weights)
    capacity = question.prompt_tokens + WARM_UP + PASSES
    with tempfile.TemporaryDirectory() as room:
        path = export_for("onnxruntime", design, Path(room))
        session = OnnxRuntimeSession(
            path,
            capacity=min(capacity, question.arch.max_tokens),
            batch=question.batch,
            threads=threads,
            profile=str(Path(room) / "profile"),
        )
        _run(session, question.prompt_tokens, question.batch, question.arch.vocab_size, seed=seed)
        events = json.loads(session.end_profile().read_text(encoding="utf-8"))
        names = _node_names(path)
    seen = durations(events)
    halves = {"prefill": slice(WARM_UP, WARM_UP + PASSES), "decode": slice(2 * WARM_UP + PASSES, None)}
    phases = tuple(
        joined(phase, {cost.place: cost.latency_s for cost in case.operators(phase)}, names, seen, halves[phase])
        for phase in case.phases
    )
    return MeasuredExplanation(model=question.arch.name, runtime=case.estimate.runtime, phases=phases)


def _run(session: Any, prompt: int, batch: int, vocabulary: int, *, seed: int) -> None:
    """Runs several prefills, then decodes after the last one."""
    draw = np.random.default_rng(seed)
    for _ in range(WARM_UP + PASSES):
        session.prefill(draw.integers(0, vocabulary, (batch, prompt)))
    for _ in range(WARM_UP + PASSES):
        session.decode(draw.integers(0, vocabulary, (batch, 1)))


def _node_names(path: Path) -> list[str]:
    import onnx

    return [node.name for node in onnx.load(str(path), load_external_data=False).graph.node]


def durations(events: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Seconds of each run of each node, in order, from the runtime's trace."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.get("ts", 0)):
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            found[name.removesuffix("_kernel_time")].append(event["dur"] * 1e-6)
    return dict(found)


def joined(
    phase: str, predicted: Mapping[str, float], names: Sequence[str], seen: Mapping[str, list[float]], part: slice
) -> MeasuredPhase:
    """Joins predicted and measured seconds by operator. The file's nodes are in the order of the predicted operators.

    Args:
        phase: Its name.
        predicted: Seconds by place, in the order of the graph.
        names: The file's nodes, in order.
        seen: Seconds of each run by node.
        part: The runs of this phase.
    """
    rows: dict[str, list[float]] = {}
    place_of = dict(zip(names, predicted, strict=True))
    for place, seconds in predicted.items():
        rows.setdefault(_operator(place), [0.0, 0.0, 0.0])[0] += seconds
    for name, runs in seen.items():
        place = place_of.get(name) or next(
            (place_of[known] for known in names if name.startswith(known)), "other nodes"
        )
        row = rows.setdefault(_operator(place), [0.0, 0.0, 0.0])
        row[1] += float(np.median(runs[part])) if runs[part] else 0.0
        row[2] += 1
    found = [
        Row(operator=name, predicted_s=row[0], measured_s=row[1], nodes=round(row[2])) for name, row in rows.items()
    ]
    found.sort(key=lambda row: -row.measured_s)
    return MeasuredPhase(
        phase=phase,
        rows=tuple(found),
        predicted_s=sum(row.predicted_s for row in found),
        measured_s=sum(row.measured_s for row in found),
    )


def _operator(place: str) -> str:
    return re.sub(r"^layers\.\d+\.", "layers.", place)
