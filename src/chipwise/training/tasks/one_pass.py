"""Settings shared by tasks that answer a request in one forward pass, without generating tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric

T = TypeVar("T")
LATENCY = "ttft_p50"
ACCURACY = Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True)
LAW = Law(floor=0.05, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False)
"""Prior law: error rate of small Fashion-MNIST classifiers; its level is fitted to the run's first training runs."""
CLASSES = replace(LAW, layers=1.15e4, size_exponent=1.25, repeats=60.0, smallest=0.17)
"""Prior law of classifiers, fitted to short and long trainings of 50,000 to 320,000 parameters on Fashion-MNIST and on
spoken words (``benchmarks/real/classes_law.py``). Above 100,000 parameters, size changes little. The value of
``repeats`` is that of 3,660 clips; 55,200 images are learnt in fewer passes (``vision/task.py``)."""


def defaults(metric: Metric, *, source: str) -> Mapping[str, object]:
    """Default fields of a run file: one pass per request, quality and latency as goals, and data from ``source``."""
    return {
        "workload": {"prompt_tokens": 1, "new_tokens": 1},
        "objectives": {metric.name: metric.direction, LATENCY: "minimize"},
        "data": {"source": source},
    }


def inputs_of(space: SpaceSpec, kind: type[T]) -> T:
    """Returns the part of ``space`` that describes model inputs, such as images, if its type is ``kind``.

    Raises:
        SpecError: The space describes inputs of a different type.
    """
    if not isinstance(space.own, kind):
        raise SpecError(f"describes no {kind.__name__}", field="space")
    return space.own


def check_axes(image: ImageSpace, axes: int, message: str) -> Iterator[tuple[str, str]]:
    """Returns field and error message if the inputs do not have ``axes`` axes: 2 for images, 1 for signals in time."""
    if image.axes != axes:
        yield "space.image.axes", message
