"""Base of tasks with one pass per request, without generated tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric

LATENCY = "ttft_p50"
ACCURACY = Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True)
LAW = Law(floor=0.05, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False)
"""Error share of small classifiers of Fashion-MNIST, about; the level is that of the run's own trainings."""


def defaults(metric: Metric, *, source: str) -> Mapping[str, Any]:
    """Usual fields of a run file: one pass a request, quality against its time, and data from ``source``."""
    return {
        "workload": {"prompt_tokens": 1, "new_tokens": 1},
        "objectives": {metric.name: metric.direction, LATENCY: "minimize"},
        "data": {"source": source},
    }
