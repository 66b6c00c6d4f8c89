"""Sustained load: how the speed of a machine falls over minutes.

A phone or a fanless board slows down as it heats up. Decode steps are timed without a pause, and a curve with one time
constant is fitted to their medians over short windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.deploy.measure.harness import ask_worker, make_request, measurement_of
from chipwise.deploy.measure.measurement import Measurement
from chipwise.errors import MeasurementError
from chipwise.hardware.device import Thermal
from chipwise.model.ops.workload import Workload

WINDOWS = 60
LEAST_LOSS = 0.02  # loss of speed; smaller ones count as noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One time window of a sustained measurement."""

    at_s: float  # middle of the window
    tpot_p50_s: float
    steps: int
    clock_hz: float | None = None  # at the end of the window
    temperature_c: float | None = None  # of the hottest zone at the end of the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """A long measurement, its windows, and the thermal model fitted to them."""

    measurement: Measurement
    windows: tuple[Window, ...]
    thermal: Thermal


def measure_sustained(
    model: Path,
    workload: Workload,
    *,
    seconds: float,
    runtime: str = "onnxruntime",
    threads: int = 1,
    calibrated: Mapping[str, float] | None = None,
    remote: str | None = None,
    ambient_c: float | None = None,
) -> Sustained:
    """Runs ``model`` without a pause for ``seconds``, in surroundings of ``ambient_c`` °C.

    Other arguments are those of :func:`harness.measure`.

    Raises:
        MeasurementError: The model cannot be measured, or the time is too short for a curve.
    """
    timeout_s = 2 * seconds + 60
    request = make_request(model, workload, runtime=runtime, threads=threads, seconds=seconds, timeout_s=timeout_s)
    reply = ask_worker(request, timeout_s=timeout_s, threads=threads, remote=remote)
    windows = windowed(reply["tpot_at_s"], reply["tpot_s"], seconds=reply["wall_s"])
    found = measurement_of(
        reply, model=model, workload=workload, runtime=runtime, threads=threads, calibrated=calibrated
    )
    thermal = replace(fit_thermal(windows), temperature_c=reply["temperature_c"], ambient_c=ambient_c)
    return Sustained(measurement=found, windows=windows, thermal=thermal)


def windowed(at_s: Sequence[float], step_s: Sequence[float], *, seconds: float) -> tuple[Window, ...]:
    """Medians of decode steps over equal time windows; windows without a step are left out."""
    at, steps = np.asarray(at_s, np.float64), np.asarray(step_s, np.float64)
    width = max(seconds, float(at.max(initial=0.0)) + 1e-9) / WINDOWS
    place = np.minimum((at / width).astype(int), WINDOWS - 1)
    return tuple(
        Window(at_s=(i + 0.5) * width, tpot_p50_s=float(np.median(steps[place == i])), steps=int((place == i).sum()))
        for i in range(WINDOWS)
        if (place == i).any()
    )


def fit_thermal(windows: Sequence[Window]) -> Thermal:
    """Fits ``cold * (1 + rise * (1 - exp(-t / constant)))`` to the windows, minimising absolute errors.

    Time constants are tried on a grid from 5 % to 100 % of the observed time. The two other parameters follow by least
    squares with less weight for outliers (slow periods with another cause).

    Raises:
        MeasurementError: There are too few windows.
    """
    if len(windows) < 5:
        raise MeasurementError(
            f"{len(windows)} windows are too few to fit a curve; measure for longer (--sustained 1m or more)"
        )
    at = np.array([window.at_s for window in windows])
    took = np.array([window.tpot_p50_s for window in windows])
    observed_s = float(at[-1] + at[0])
    fits = [(*_rise(at, took, constant), constant) for constant in np.geomspace(observed_s / 20, observed_s, 40)]
    _, cold, rise, constant = min(fits)
    share = min(1.0, cold / (cold + rise)) if rise > 0 else 1.0
    lost = 1 - share >= LEAST_LOSS
    return Thermal(
        sustained_share=float(share) if lost else 1.0,
        time_constant_s=float(constant),
        throttle_s=float(constant * math.log(2)) if lost else None,
        observed_s=observed_s,
    )


def _rise(at: Float64Array, took: Float64Array, constant: float) -> tuple[float, float, float]:
    """Mean absolute error, cold value and total rise of the best-fitting curve with this time constant."""
    rows = np.stack([np.ones_like(at), 1 - np.exp(-at / constant)], axis=1)
    weights = np.ones(len(at))
    values = np.zeros(2)
    for _ in range(8):
        weighted = rows * weights[:, None]
        values = np.linalg.lstsq(weighted.T @ rows, weighted.T @ took, rcond=None)[0]
        left = np.abs(took - rows @ values)
        weights = 1 / np.maximum(left, 1e-3 * float(np.median(took)))
    return float(np.abs(took - rows @ values).mean()), float(values[0]), float(values[1])
