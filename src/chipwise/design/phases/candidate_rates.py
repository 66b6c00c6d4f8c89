"""Requests a second by number of candidates, of the exported graph on this machine: for the report of a ranking run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.files import storage
from chipwise.deploy.export.onnx import export
from chipwise.design.phases.matrix_formats import opened_session
from chipwise.design.run.spec import RunSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.predict.load.one_server import rate_within

CANDIDATES = (1, 8, 32, 128, 512)
PASSES, WARM = 300, 10
LIMIT_S = 0.010  # within which 99 of 100 requests are answered, where the run file has no limit on ttft_p99


def candidate_rates(design: Design, weights: Mapping[str, Any], folder: Path, *, spec: RunSpec) -> Mapping[str, Any]:
    """P50 and P99 of a request, and requests a second within the limit, for each number of candidates, as measured."""
    hard = [limit.limit for limit in spec.limits if limit.metric == "ttft_p99" and limit.hard]
    limit_s, path, rows = min(hard, default=LIMIT_S), folder / "rated.onnx", []
    for count in CANDIDATES:
        with storage(path):
            export(replace(design, arch=with_candidates(design.arch, count)), weights, path)
        try:
            session, asked = opened_session(path, spec)
            seconds = np.empty(WARM + PASSES)
            for i in range(len(seconds)):
                begun = time.perf_counter()
                session.prefill(asked)
                seconds[i] = time.perf_counter() - begun
        finally:
            path.unlink(missing_ok=True)
        taken = seconds[WARM:]
        rows.append(
            {
                "candidates": count,
                "p50_s": float(np.median(taken)),
                "p99_s": float(np.quantile(taken, 0.99)),
                "requests_per_s": rate_within(taken.tolist(), limit_s),
            }
        )
    return {"limit_s": limit_s, "rows": rows}
