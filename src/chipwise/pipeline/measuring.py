"""A run's measurements: what is measured is exported by the code that ships it, and judged by what it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.digest import plain
from chipwise.core.errors import MeasurementError
from chipwise.deploy.onnx import export
from chipwise.pipeline.spending import Rates, measured_w, spent
from chipwise.profile.exporting import export_for
from chipwise.profile.harness import measure, measure_alternately
from chipwise.profile.measurement import Measurement
from chipwise.profile.store import MeasurementStore
from chipwise.run.spec import RunSpec
from chipwise.run.start_spec import StartSpec
from chipwise.space.constraints import MEASURED_METRICS, Constraint, broken
from chipwise.spec import Design
from chipwise.training.tokenizer import Split, TokenData

CANDIDATE_S = 60.0  # before a candidate that does not answer is given up
MEMORY_BYTES = 16_000_000_000  # addresses that a candidate's process may take; it is refused more
HEADROOM = 0.85  # of a P99 limit: what a candidate may take before it is trained; tails differ from day to day


@dataclass(frozen=True)
class Measuring:
    """How this run measures; what candidates took is also kept in the user's store.

    ``anchors`` are those of the run's profile, against which drift is told.
    """

    spec: RunSpec | StartSpec
    anchors: Mapping[str, float] | None = None
    timeout_s: float = CANDIDATE_S

    def candidate(self, design: Design, folder: Path) -> Measurement:
        """A design with random weights: its latency and memory are those that it will have when trained.

        Raises:
            MeasurementError: It hangs, crashes, takes more memory than it may, or gives no finite logits.
        """
        path = export_for(self.spec.target.runtime, design, folder, stem="random")
        try:
            found = measure(
                path, self.spec.workload, timeout_s=self.timeout_s, memory_limit_bytes=MEMORY_BYTES, **self._settings
            )
        finally:
            path.unlink(missing_ok=True)
        MeasurementStore().add(found, design=design, source=f"search {self.spec.name}")
        return found

    def alternately(self, paths: list[Path], *, timeout_s: float = CANDIDATE_S) -> list[Measurement | MeasurementError]:
        """Exported files in turns, so that the machine's drift hits all alike; or why one could not be measured."""
        return measure_alternately(paths, self.spec.workload, timeout_s=timeout_s, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        target = self.spec.target
        return {
            "runtime": target.runtime,
            "threads": target.threads,
            "attempts": 2,
            "calibrated": self.anchors,
        }


def metrics_of(
    measurement: Measurement, reading: Callable[[Measurement, str], float] = Measurement.metric
) -> dict[str, float]:
    """Every metric that could be measured, as ``reading`` gives it: as taken, corrected for drift, or settled."""
    found = {}
    for name in sorted(MEASURED_METRICS):
        try:
            found[name] = reading(measurement, name)
        except MeasurementError:
            continue
    return found


def notes_of(measurement: Measurement, rates: Rates, *, final: bool) -> dict[str, Any]:
    """What a trial keeps of its measurement.

    ``measured`` is as taken where it is final, and on the calibration's footing before; ``settled`` is what is learnt.
    Joules are measured where the processor counts them; dollars are the measured medians at the stated price.
    """
    measured = metrics_of(measurement, Measurement.metric if final else Measurement.corrected)
    metered = Rates(power_w=measured_w(measurement), usd_per_s=rates.usd_per_s)
    costs = spent(measured["ttft_p50"], measured["tpot_p50"], measurement.workload, metered)
    return {
        "measured": measured | costs,
        "settled": metrics_of(measurement, Measurement.settled),
        "drift": None if measurement.drift is None else plain(measurement.drift),
        "clean": measurement.clean,
        "unclean_because": list(measurement.reasons),
        "loudness": measurement.noise_level,
        "runtime_version": measurement.runtime_version,
        "final": final,
    }


def within(limits: Iterable[Constraint], values: Mapping[str, float], *, headroom: float = 1.0) -> bool:
    """Whether ``values`` keep all limits, tails of latency with ``headroom``."""
    strained = {name: value / headroom if name.endswith("_p99") else value for name, value in values.items()}
    return not broken(limits, strained)


def exported_bits_per_byte(
    design: Design,
    weights: Mapping[str, Any],
    data: TokenData,
    path: Path,
    *,
    split: Split = "validation",
    max_bytes: int | None = None,
) -> float:
    """Bits per byte of ``split`` by the exported graph, computed by ONNX Runtime with every position's logits.

    The windows are those of :func:`chipwise.training.evaluate.evaluate`.
    """
    from chipwise.profile.backends.onnxruntime import OnnxRuntimeSession
    from chipwise.training.evaluate import WINDOW_TOKENS

    export(design, weights, path, logits="all")
    try:
        window = min(WINDOW_TOKENS, design.arch.max_tokens)
        session = OnnxRuntimeSession(path, capacity=window)
        stream, size_bytes = data.held_out(split, max_bytes=max_bytes)
        nats = 0.0
        for start in range(0, len(stream) - 1, window):
            tokens = stream[start : start + window + 1].astype(np.int64)
            nats += float(nats_of(session.all_logits(tokens[None, :-1])[0], tokens[1:]).sum())
    finally:
        path.unlink(missing_ok=True)
    if not math.isfinite(nats):
        raise MeasurementError(f"{path}: the exported model's logits are not finite")
    return nats / math.log(2) / size_bytes


def nats_of(logits_TV: NDArray[np.floating], tokens_T: NDArray[np.integer]) -> NDArray[np.float64]:
    """What each token (T,) costs by the logits before it, in nats."""
    logits = logits_TV.astype(np.float64)
    top = logits.max(axis=1)
    normaliser = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    found: NDArray[np.float64] = normaliser - logits[np.arange(len(logits)), tokens_T]
    return found
