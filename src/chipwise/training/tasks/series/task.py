"""Time series: values are tokens (Ansari et al. 2024, arXiv:2403.07815), and a decoder forecasts the next value.

This module contains the task's settings that need no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import START
from chipwise.training.tasks.generation import LATENCY, beyond_context
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Need, Task, TaskLabels
from chipwise.training.tasks.references import llama_proportions
from chipwise.training.tasks.series.sections import sections

BITS_PER_VALUE = Metric(name="bits_per_value", title="bits per value")


def departures(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    """Returns an error if the workload exceeds the models' context, or if there are several vocabulary sizes."""
    yield from beyond_context(space, workload)
    if len(space.vocab_size) > 1:
        yield "space.vocab_size", "must have one entry: bits per value are comparable only with equally many quantiles"


SERIES = Task(
    name="series",
    forms=("decoder",),
    metric=BITS_PER_VALUE,
    latency_metric=LATENCY,
    labels=TaskLabels(data="series", entry=("series",) * 2, tokens="values", curve="bits per value", verb="forecasts"),
    law=replace(START, level_known=False),
    needs=Need(departures=departures),
    defaults={"objectives": {"bits_per_value": "minimize", "tpot_p50": "minimize"}},
    references=llama_proportions,
    family=lambda choices: choices["vocab_size"],
    data="chipwise.training.tasks.series.data:SeriesData",
    report_sections=sections,
)
