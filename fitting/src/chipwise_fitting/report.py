"""Reports of fits: rows used, and errors of cross-validation by situation."""

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
    """Errors on rows that were left out of the fit, in percent, by situation."""

    kind: str
    rows: int
    errors: Mapping[str, Mapping[str, float]]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.rows} rows"]
        for situation, values in self.errors.items():
            lines.append(f"  {situation}: " + ", ".join(f"{name} {value:.1f}" for name, value in values.items()))
        return "\n".join(lines)


def errors(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Returns the number of rows; and, in percent, mean, median and 90th percentile of |predicted - truth| / truth, and
    the median bias.
    """
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
    """Half-width on the log scale that contains ``share`` of the truths: a quantile of |log(truth / predicted)|.

    If ``devices`` (the device of each row) is given, all devices have equal weight, however many rows they have.
    """
    logs = np.log(np.asarray(truth, dtype=np.float64) / np.asarray(predicted, dtype=np.float64))
    return conformal_half_width(logs, share, groups=devices)
