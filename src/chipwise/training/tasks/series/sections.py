"""Report section of forecasts: the ends of some test series with one-step forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section

WIDTH, HEIGHT = 480, 120  # pixels of a chart
COLOURS = {"true": "#999999", "baseline": "#e69f00", "winner": "#0072b2"}


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """Plots of true values (grey) and one-step forecasts, at the end of test series."""
    lines = [
        "".join(
            _line(item.sequence(name, float), item.sequence("true", float), colour)
            for name, colour in COLOURS.items()
            if name in item
        )
        for item in Record.of(samples).records("forecasts")
    ]
    note = "<p>Grey: true values. Blue: the winner's forecast of each next value. Orange: the reference design's.</p>"
    frame = f"<p><svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img'>{{}}</svg></p>"
    html = note + "".join(map(frame.format, lines))
    return [Section(name="forecasts", title="What it forecasts", html=html)] if lines else []


def _line(values: Sequence[float], scale: Sequence[float], colour: str) -> str:
    low, span = min(scale), (max(scale) - min(scale)) or 1.0
    across = np.linspace(0, WIDTH, len(values))
    up = HEIGHT * (0.95 - 0.9 * (np.array(values) - low) / span)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    return f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
