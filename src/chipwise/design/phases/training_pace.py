"""Estimates how long training takes on this machine, before a run has trained anything."""

from __future__ import annotations

from chipwise.core.record import Record
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.strategies.study import Study
from chipwise.model.space.designs import design_of
from chipwise.training.laws.scaling import PACE
from chipwise.training.tasks.protocol import TaskData

QUANTILE = 4  # of designs sorted by size, the one at a quarter is timed: steps of larger ones may take seconds


def slowness(study: Study) -> float:
    """Training time per token on this machine, divided by that of the reference ``PACE``; 1 if it was not measured."""
    return Record(study.memory).get("slowness", float, 1.0)


def measure_slowness(study: Study, spec: RunSpec, folder: RunFolder, data: TaskData) -> None:
    """Times a few training steps of a small conventional design, once per run, and stores the :func:`slowness`.

    In the same CPU time, one processor may train on several times as many tokens as another, so the best size of a
    design depends on the processor. Steps are timed only if the budget is CPU time for training on this machine.
    """
    if "slowness" in study.memory or spec.allowance.unit != "cpu" or spec.train.kind != "local":
        return
    inside = (one for one in spec.task_settings.references(spec.space) if one["d_model"] in spec.space.d_model)
    sized = sorted(inside, key=lambda one: int(str(one["d_model"])) ** 2 * int(str(one["depth"])))
    if not sized:
        return
    from chipwise.model.nn.precision import kept_precision
    from chipwise.training.loop.pace import tokens_per_cpu_s

    arch = design_of(sized[len(sized) // QUANTILE], spec=spec.space, name="baseline").arch
    precision = spec.train.precision or kept_precision(folder.path / "precision.json")
    found = tokens_per_cpu_s(arch, data.data(arch).load(), data.recipe, precision=precision)
    layers, head = arch.parameters() - arch.embedding_parameters(), arch.outputs * arch.d_model
    study.remember(slowness=float(PACE.tokens_per_s(layers, head)) / found)
