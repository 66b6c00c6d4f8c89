"""What a fit says about itself: rows used, and errors of cross-validation by situation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.statistics import conformal_half_width

Progress = Callable[[str], None]
"""Called with one line of text at each step of a fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Errors of predictions for rows that were not in the fit that made them, in percent, keyed by situation."""

    kind: str
    rows: int
    errors: Mapping[str, Mapping[str, float]]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.rows} rows"]
        for situation, values in self.errors.items():
            lines.append(f"  {situation}: " + ", ".join(f"{name} {value:.1f}" for name, value in values.items()))
        return "\n".join(lines)


def errors(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Rows, and mean, median and 90th percentile of |predicted - truth| / truth, and the median bias, in percent."""
    y, p = np.asarray(truth, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    off = np.abs(p - y) / y
    return {
        "n": float(len(y)),
        "mape": float(100 * off.mean()),
        "median": float(100 * np.median(off)),
        "p90": float(100 * np.quantile(off, 0.9)),
        "bias": float(100 * np.median((p - y) / y)),
    }


def conformal(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, *, devices: npt.ArrayLike | None = None, share: float = 0.9
) -> float:
    """Half-width on the log scale that holds ``share`` of the truths: a quantile of |log(truth / predicted)|.

    With ``devices`` (which device each row is of) every device weighs the same, however many rows it has.
    """
    logs = np.log(np.asarray(truth, dtype=np.float64) / np.asarray(predicted, dtype=np.float64))
    return conformal_half_width(logs, share, groups=devices)
