"""Fused and unfused operators of ranking models, predicted and measured on this machine in ONNX Runtime, one thread.

    python benchmarks/ranking_fusion.py [--calibration 90] [--profile FILE] [--runs 400] [--out FILE.csv]

Calibrates for ranking models, then writes SASRec and HSTU of two layers of width 64, with gated feed-forwards and tags,
in FP32 and int8, for 1, 32 and 128 candidates: with nothing fused, with each of the three fusions alone (projections of
attention as one product, a gate and what it gates as one, the look-ups of an item and its tags as one), and with all.
Each is timed in turns with the file in which nothing is fused, on the processor's clock. Printed are predicted and
measured seconds, their ratio to the unfused file's, and whether the prediction says rightly which of the two is faster.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import predict_seconds
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.measure.worker import requested
from chipwise.deploy.runtimes.onnxruntime import OnnxRanker
from chipwise.design.run.spec import load_run
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import FUSIONS, Design
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import design_of
from chipwise.training.tasks.selective_precision import paired
from provenance import stamp

EXAMPLE = Path(__file__).parent.parent / "examples" / "ranking.yaml"
REQUEST = Workload(prompt_tokens=1, new_tokens=1)
VARIANTS = (*((name,) for name in FUSIONS), FUSIONS)
CANDIDATES = (1, 32, 128)
NOISE = 0.02  # of a time: less is no difference


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=float, default=90.0, help="seconds")
    parser.add_argument("--profile", type=Path, help="where the calibration is kept; read if it is there")
    parser.add_argument("--runs", type=int, default=400, help="pairs of passes of each comparison")
    parser.add_argument("--out", type=Path, help="rows as CSV")
    asked = parser.parse_args()
    if asked.profile and asked.profile.exists():
        profile = MachineProfile.load(asked.profile)
    else:
        profile = calibrate(seconds=asked.calibration, kind="ranking")
        if asked.profile:
            profile.save(asked.profile)
    rows = []
    for name, design in designs():
        for row in compared(design, profile, runs=asked.runs):
            rows.append({"design": name, "weights": design.weights, **row})
            print(
                f"{name:7} {design.weights:5} {row['candidates']:4} candidates, fused {row['fused']:14} "
                f"{row['measured_s'] * 1e6:7.0f} µs, {row['measured_ratio']:.3f} times the unfused (predicted "
                f"{row['predicted_s'] * 1e6:7.0f} µs, {row['predicted_ratio']:.3f}){'' if row['right'] else '  wrong'}",
                flush=True,
            )
    errors = np.abs([row["predicted_s"] / row["measured_s"] - 1 for row in rows])
    print(f"{np.mean([row['right'] for row in rows]):.0%} of {len(rows)} comparisons are predicted rightly", end="; ")
    print(f"median error of the seconds {np.median(errors):.1%}, largest {errors.max():.1%}")
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        stamp(asked.out)


def designs() -> Iterator[tuple[str, Design]]:
    """SASRec and HSTU of two gated layers of width 64, in FP32 and int8."""
    spec = load_run(EXAMPLE).space
    fixed = {"d_model": 64, "depth": 2, "head_size": 32, "vocab_size": 1, "tie_embeddings": False, "sharing": "none"}
    for name, mixing in (("SASRec", "attention"), ("HSTU", "hstu")):
        for weights in ("fp32", "int8"):
            layers = [{"heads": 2, "kv_heads": 2, "ffn": "swiglu", "ffn_width": 64}] * 2
            kinds = {"mixing": mixing, "table": "full", "score": "similarity", "weights": weights, "layers": layers}
            yield name, design_of({**fixed, **kinds}, spec=spec)


def compared(design: Design, profile: MachineProfile, *, runs: int) -> Iterator[dict[str, Any]]:
    """Each variant, compared with the file without fusion."""
    for count in CANDIDATES:
        arch = with_candidates(design.arch, count)
        values = random_weights(arch, seed=0)
        unfused = Design(arch=arch, weights=design.weights, fused=())
        before_s = predict_seconds(profile, unfused, Phase.PREFILL, REQUEST)
        with tempfile.TemporaryDirectory() as folder:
            plain = opened(export(unfused, values, Path(folder) / "unfused.onnx"))
            for fused in VARIANTS:
                tried = Design(arch=arch, weights=design.weights, fused=fused)
                after_s = predict_seconds(profile, tried, Phase.PREFILL, REQUEST)
                path = export(tried, values, Path(folder) / "fused.onnx")
                first, second = paired(plain, opened(path), clock=time.process_time, runs=runs)
                ratio = float(np.median(second / first))
                yield {
                    "candidates": count,
                    "fused": "+".join(fused),
                    "predicted_s": after_s,
                    "measured_s": float(np.median(second)),
                    "unfused_predicted_s": before_s,
                    "unfused_s": float(np.median(first)),
                    "predicted_ratio": after_s / before_s,
                    "measured_ratio": ratio,
                    "right": abs(ratio - 1) < NOISE or (after_s < before_s) == (ratio < 1),
                }


def opened(path: Path) -> Callable[[], object]:
    """One pass of a file over a random request."""
    session = OnnxRanker(path)
    ids = requested(session, np.random.default_rng(0), batch=1, prompt=1)
    return lambda: session.prefill(ids)


if __name__ == "__main__":
    main()
