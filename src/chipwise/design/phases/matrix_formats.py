"""Chooses a format for each matrix of a finalist by measured time and loss, if the task asks for it.

The search tries formats of whole models. For a task with ``per_matrix``, a matrix of a finalist is then exported in a
narrow format if this makes passes faster (timed in turns with FP32) and costs at most a thousandth of FP32's validation
score. That file is measured and shipped; if it breaks a limit, the format chosen by the search is kept.
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
    """Formats other than FP32 that a space allows for single matrices; empty if the space lacks FP32."""
    return [name for name in space.formats if name != "fp32"] if "fp32" in space.formats else ()


def chosen_by_matrix(spec: RunSpec, target: Target | None) -> bool:
    """Whether a run's finalists get one format per matrix, which requires timing their files in this process."""
    return spec.task_settings.per_matrix and bool(narrow_forms(spec.space)) and timed_here(spec, target)


def timed_here(spec: RunSpec, target: Target | None) -> bool:
    """Whether this process can time the files that the run's target serves."""
    measures = target is not None and target.measures and spec.target.local
    return measures and suffix_of(spec.target.runtime) == ".onnx"


def fastest_fusion(design: Design, predict: Predict, *, pace: str) -> Design:
    """``design`` with the fused operators that minimise the predicted time; unchanged if none helps."""
    fusions = design.arch.stem.fusions
    if not fusions:
        return design
    every = (names for count in range(len(fusions) + 1) for names in itertools.combinations(fusions, count))
    tried = [design, *(replace(design, fused=names) for names in every)]
    return min(tried, key=lambda each: float(predict(each)[pace][0] or math.inf))


def opened_session(path: Path, spec: RunSpec) -> tuple[Session, AnyArray]:
    """Opens a file in the run's runtime with its threads, for a request of its workload."""
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
    """A :class:`~chipwise.training.tasks.selective_precision.Selection` for a trained candidate, as plain notes.

    Narrow matrices are rounded by ``packing``. Uses the operator fusion that ``predict`` finds fastest.
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
