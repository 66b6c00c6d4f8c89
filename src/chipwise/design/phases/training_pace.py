"""Estimates how long training takes on this machine, before a run has trained anything."""

from __future__ import annotations

import numpy as np

from chipwise.core.record import Record
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.strategies.study import Study
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.designs import design_of
from chipwise.training.laws.scaling import PACE, Pace, fit_pace
from chipwise.training.tasks.protocol import TaskData

QUANTILE = 4  # of designs sorted by size, the one at a quarter is timed: steps of larger ones may take seconds
SHARED = ("patch", "vocab_size")  # choices in which the smallest design must equal it to be timed, too


def known_pace(study: Study) -> Pace:
    """The :func:`measure_pace` of training on this machine; ``PACE`` if it was not measured."""
    found = Record(study.memory).sequence("pace", float)
    return Pace(token_s=found[0], layer_parameter_s=found[1], head_parameter_s=found[2]) if found else PACE


def sizes_of(arch: ArchSpec) -> tuple[int, int]:
    """Parameters of the layers and of the head, as the laws of loss and pace count them."""
    head = arch.outputs * arch.d_model
    return arch.parameters() - (1 if arch.tie_embeddings else 2) * head, head


def measure_pace(study: Study, spec: RunSpec, folder: RunFolder, data: TaskData) -> None:
    """Times a few training steps of two small conventional designs, once per run, and stores the pace fitted to them.

    In the same CPU time, one processor may train on several times as many tokens as another, and small models may be
    faster or slower relative to large ones, so the best size of a design depends on the processor and the task. Steps
    are timed only if the budget is CPU time for training on this machine.
    """
    if "pace" in study.memory or spec.allowance.unit != "cpu" or spec.train.kind != "local":
        return
    inside = (one for one in spec.task_settings.references(spec.space) if one["d_model"] in spec.space.d_model)
    sized = sorted(inside, key=lambda one: int(str(one["d_model"])) ** 2 * int(str(one["depth"])))
    if not sized:
        return
    from chipwise.model.nn.precision import kept_precision
    from chipwise.training.loop.pace import tokens_per_cpu_s

    quarter = sized[len(sized) // QUANTILE]
    alike = (one for one in sized if all(one.get(name) == quarter.get(name) for name in SHARED))
    archs = {design_of(one, spec=spec.space, name="baseline").arch for one in (next(alike), quarter)}
    precision = spec.train.precision or kept_precision(folder.path / "precision.json")
    rows = [
        (*sizes_of(arch), tokens_per_cpu_s(arch, data.data(arch).load(), data.recipe, precision=precision))
        for arch in sorted(archs, key=lambda arch: arch.parameters())
    ]
    found = fit_pace(*np.array(rows, float).T)
    study.remember(pace=[found.token_s, found.layer_parameter_s, found.head_parameter_s])
