"""Chooses a number format for each matrix of a finalist by measured time and loss, for tasks with ``per_matrix``.

The search uses one format for a whole model. Afterwards, a matrix of a finalist gets a narrow format if this makes
forward passes faster (timed in alternation) and lowers the validation score by at most a thousandth of the score in
FP32. The resulting file is measured and shipped; if it exceeds a limit, the format that the search chose is used
instead.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.deploy.export.exporters import suffix_of
from chipwise.deploy.measure.worker import requested
from chipwise.deploy.runtimes import RUNTIMES, Session, clock_of
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate
from chipwise.design.targets.chance import Bounds
from chipwise.design.targets.target import Target
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.protocol import Exported, TaskData
from chipwise.training.tasks.selective_precision import select

Predict = Callable[[Design], Mapping[str, Bounds]]
CPU_S = 5.0  # CPU seconds reserved for each finalist


def narrow_forms(space: SpaceSpec) -> Sequence[str]:
    """Formats that single matrices may use instead of FP32; empty if the space does not allow FP32."""
    return [name for name in space.formats if name != "fp32"] if "fp32" in space.formats else ()


def chosen_by_matrix(spec: RunSpec, target: Target | None) -> bool:
    """Whether a run's finalists get a format per matrix; this process must be able to time their files."""
    return spec.task_settings.per_matrix and bool(narrow_forms(spec.space)) and timed_here(spec, target)


def timed_here(spec: RunSpec, target: Target | None) -> bool:
    """Whether this process can time the files that the run's target serves."""
    measures = target is not None and target.measures and spec.target.local
    return measures and suffix_of(spec.target.runtime) == ".onnx"


def fastest_fusion(design: Design, predict: Predict, *, pace: str) -> Design:
    """``design`` with the fusion of operators that minimises the predicted time; unchanged if no fusion helps."""
    fusions = design.arch.stem.fusions
    if not fusions:
        return design
    every = (names for count in range(len(fusions) + 1) for names in itertools.combinations(fusions, count))
    tried = [design, *(replace(design, fused=names) for names in every)]
    return min(tried, key=lambda each: float(predict(each)[pace][0] or math.inf))


def opened_session(path: Path, spec: RunSpec) -> tuple[Session, AnyArray]:
    """Opens a model file in the run's runtime, and makes a random request of the run's workload."""
    workload = spec.workload
    room = workload.prompt_tokens + workload.new_tokens
    runtime = RUNTIMES.load(spec.target.runtime)()
    session: Session = runtime.open(path, capacity=room, batch=workload.batch, threads=spec.target.threads, options={})
    random = np.random.default_rng(spec.seed)
    return session, requested(session, random, batch=workload.batch, prompt=workload.prompt_tokens)


def select_formats(
    item: Candidate,
    weights: Mapping[str, AnyArray],
    folder: Path,
    *,
    spec: RunSpec,
    data: TaskData,
    predict: Predict,
    packing: Packing = NEAREST,
) -> Mapping[str, object]:
    """Chooses the formats of a trained candidate's matrices; returns fields of a :class:`Selection` and ``kept``.

    Narrow matrices are rounded by ``packing``. Operators are fused in the way that ``predict`` finds fastest. For the
    fields, see :class:`~chipwise.training.tasks.selective_precision.Selection`.
    """
    clock: Callable[[], float] = time.process_time  # process time excludes other programs

    def opened(path: Path) -> Callable[[], object]:
        nonlocal clock
        session, asked = opened_session(path, spec)
        if spec.target.threads > 1:
            clock = clock_of(session)
        return lambda: session.prefill(asked)

    found = select(
        fastest_fusion(item.design, predict, pace=spec.task_settings.latency_metric),
        weights,
        folder,
        opened=opened,
        judged=lambda design, path: (
            data.losses(
                Exported(design=design, weights=weights, folder=folder, packing=packing), split="validation"
            ).loss
        ),
        packing=packing,
        forms=narrow_forms(spec.space),
        clock=lambda: clock(),
    )
    held: dict[str, object] = plain(found)
    return held | {"kept": True}
