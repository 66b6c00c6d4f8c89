"""Precision by matrix of a run's winner: seconds and NDCG@10 of FP32, of int8 throughout, and of the choice.

    python benchmarks/ranking_precision.py runs/ranking [--candidates 128] [--out FILE.csv]

The winner's matrices are tried in int8 one after the other, the largest first; one stays narrow where passes get faster
(timed in turns with what was kept so far) and validation NDCG stays within 0.1 % of FP32's. Then all three files are
timed in turns again, and judged on the test part, which chose nothing.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.deploy.runtimes.onnxruntime import OnnxRanker
from chipwise.design.run.winner import read_winner
from chipwise.model.arch.design import Design
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.training.tasks.ranking.dataset import RequestData, losses_of
from chipwise.training.tasks.selective_precision import paired, select
from provenance import stamp

RUNS = 400


def main() -> None:
    """Chooses, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--candidates", type=int, default=128, help="of a timed request")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    winner = read_winner(asked.run / "winner")
    if winner is None:
        raise SystemExit(f"{asked.run}: holds no winner")
    arch, weights = load_pretrained(asked.run / "winner")[:2]
    data = RequestData.load(next(asked.run.rglob("requests.npz")))
    arch = with_candidates(arch, asked.candidates)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = select(
            Design(arch=arch, fused=winner.design.fused),
            weights,
            folder,
            opened=lambda path: request(path, data),
            judged=lambda design, path: loss_of(data, path, "validation"),
            clock=time.process_time,
        )
        for row in found.tried:
            loss = "not judged" if row.loss is None else f"NDCG {1 - row.loss:.4f}"
            print(f"{row.name:32} {row.seconds_ratio:.3f} times the seconds, {loss}{' (kept)' if row.kept else ''}")
        kinds = {"fp32": "fp32", "int8": "int8", "chosen": found.weights}
        rows = [
            timed(Design(arch=arch, weights=form, fused=winner.design.fused), weights, folder, kind, data)
            for kind, form in kinds.items()
        ]
    first = rows[0]
    for row in rows:
        print(
            f"{row['kind']:7} {row['seconds'] * 1e6:7.1f} µs beside fp32's {row['fp32_seconds'] * 1e6:7.1f}; NDCG@10 "
            f"validation {row['validation']:.4f} ({row['validation'] / first['validation'] - 1:+.2%}), "
            f"test {row['test']:.4f} ({row['test'] / first['test'] - 1:+.2%}); {row['formats']}"
        )
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(first))
            writer.writeheader()
            writer.writerows(rows)
        stamp(asked.out)


def request(path: Path, data: RequestData) -> Callable[[], object]:
    """One pass of a file over a test request, with more or fewer candidates where the file ranks as many."""
    session = OnnxRanker(path)
    count = session.facts["request"]["candidates"]
    (one,) = data.examples("test", slice(1))
    places = np.arange(count) % (one.shape[1] - data.history) + data.history
    ids = np.concatenate((one[:, : data.history], one[:, places]), axis=1)
    return lambda: session.prefill(ids)


def loss_of(data: RequestData, path: Path, split: str) -> float:
    """1 less the mean NDCG@10 of a file over a part of the data."""
    (requests,) = data.examples("validation" if split == "validation" else "test")
    session = OnnxRanker(path, candidates=requests.shape[1] - data.history)
    return float(losses_of(np.stack([session.prefill(one[None])[0].copy() for one in requests])).mean())


def timed(design: Design, weights: Mapping[str, Any], folder: Path, kind: str, data: RequestData) -> dict[str, Any]:
    """A file's seconds, timed in turns with FP32, and its NDCG."""
    paths = [folder / f"{name}.onnx" for name in ("fp32", kind + "-file")]
    for path, each in zip(paths, (replace(design, weights="fp32"), design), strict=True):
        export(each, weights, path)
    before, after = paired(*(request(path, data) for path in paths), clock=time.process_time, runs=RUNS)
    return {
        "kind": kind,
        "formats": design.weights,
        "seconds": float(np.median(after)),
        "fp32_seconds": float(np.median(before)),
        "validation": 1 - loss_of(data, paths[1], "validation"),
        "test": 1 - loss_of(data, paths[1], "test"),
    }


if __name__ == "__main__":
    main()
