"""Time series as a task: values are tokens (Ansari et al. 2024, arXiv:2403.07815), a decoder forecasts the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import START, Law
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.text.task import TextTask

WIDTH, HEIGHT = 480, 120  # of a picture, in pixels
COLOURS = {"true": "#999999", "baseline": "#e69f00", "winner": "#0072b2"}
WORDS = Words(data="series", entry=("series",) * 2, tokens="values", curve="bits per value", does="forecasts")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesTask(TextTask):
    """A decoder forecasts the next value of a series: a domain that has its own data, metric and pictures."""

    metric: Metric = field(default_factory=lambda: Metric(name="bits_per_value", title="bits per value"))
    words: Words = WORDS
    law: Law = field(default_factory=lambda: replace(START, level_known=False))
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {"objectives": {"bits_per_value": "minimize", "tpot_p50": "minimize"}}
    )

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError as of text, and where bits of several sets of quantiles would be compared."""
        super(SeriesTask, self).require_fit(workload, space)
        if len(space.vocab_size) > 1:
            raise SpecError("bits per value are comparable for one number of quantiles alone", field="space.vocab_size")

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the series; see :class:`chipwise.training.tasks.series.data.SeriesData`."""
        from chipwise.training.tasks.series.data import SeriesData, SeriesStore, read_series

        return SeriesData(SeriesStore(*read_series(data, base), folder, space.vocab_size))

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """True values (grey) and forecasts of each next one, at the end of test series."""
        lines = [
            "".join(_line(item[name], item["true"], colour) for name, colour in COLOURS.items() if name in item)
            for item in samples.get("forecasts", ())
        ]
        note = "<p>Grey: what came. Blue: the winner's forecast of each next value. Orange: the reference design's.</p>"
        frame = f"<p><svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img'>{{}}</svg></p>"
        html = note + "".join(map(frame.format, lines))
        return [Picture(name="forecasts", title="What it forecasts", html=html)] if lines else []


def _line(values: Sequence[float], scale: Sequence[float], colour: str) -> str:
    low, span = min(scale), (max(scale) - min(scale)) or 1.0
    across = np.linspace(0, WIDTH, len(values))
    up = HEIGHT * (0.95 - 0.9 * (np.array(values) - low) / span)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.5'/>"


SERIES = SeriesTask()
