"""Predicted against measured latency and memory of random designs, after a fresh calibration (or a saved one).

    python benchmarks/predicted_vs_measured.py --n 40 --runtime onnxruntime --out predicted-vs-measured.csv

Writes one row per design, phase and stage: ``predicted_s`` before measuring, ``measured_s`` after; the stage says which
statistic (p50, p99). Peak memory has phase "memory" and bytes in the same columns. Prints mean absolute percentage
error and Kendall's tau.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from pathlib import Path

from chipwise.blocks.lowering import lower
from chipwise.cost import estimate
from chipwise.deploy.onnx import export, random_weights
from chipwise.hardware import MachineProfile
from chipwise.ops import Phase, Workload
from chipwise.profile.calibrate import calibrate, compare
from chipwise.profile.harness import measure
from chipwise.profile.samples import random_designs
from chipwise.spec import Design

STAGES = {"prefill": "ttft", "decode": "tpot"}


def main() -> None:
    """Calibrates, predicts, measures, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=40, help="random designs")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--seed", type=int, default=2026, help="of the designs; calibration uses others")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--profile", type=Path, help="a saved machine profile instead of calibrating")
    parser.add_argument("--attempts", type=int, default=3, help="to find the machine quiet, per design")
    args = parser.parse_args()
    workload = Workload(prompt_tokens=args.prompt_tokens, new_tokens=args.new_tokens)
    if args.profile:
        profile = MachineProfile.load(args.profile)
    else:
        profile = calibrate(runtime=args.runtime, threads=args.threads)
        print(f"calibrated {profile.machine.name}\n{profile.check_errors}")
    designs = random_designs(args.n, seed=args.seed, max_tokens=workload.total_tokens)
    rows = [row for i, design in enumerate(designs) for row in compare_one(i, design, workload, profile, args)]
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["candidate", "phase", "stage", "predicted_s", "measured_s", "clean"])
        writer.writerows(rows)
    report(rows)


def compare_one(number: int, design: Design, workload: Workload, profile: MachineProfile, args) -> list[tuple]:
    """The rows of one design."""
    graphs = [lower(design, workload, phase) for phase in Phase]
    predicted = estimate(design, graphs[0], graphs[1], workload, profile)
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        path = export(design, random_weights(design.arch, seed=number), Path(folder) / "model.onnx")
        measured = measure(path, workload, runtime=args.runtime, threads=args.threads, attempts=args.attempts)
    name = f"{number}-d{design.arch.d_model}-L{len(design.arch.layers)}-v{design.arch.vocab_size}-{design.weights}"
    rows = [
        (name, phase, stage, predicted.metric(f"{quantity}_{stage}").value, measured.metric(f"{quantity}_{stage}"))
        for phase, quantity in STAGES.items()
        for stage in ("p50", "p99")
    ]
    rows.append((name, "memory", "peak", predicted.peak_memory_bytes, measured.metric("peak_memory")))
    return [(*row, int(measured.clean)) for row in rows]


def report(rows: list[tuple]) -> None:
    """Prints errors and rank agreement per phase and stage."""
    groups = defaultdict(list)
    for _, phase, stage, predicted, measured, _ in rows:
        groups[phase, stage].append((predicted, measured))
    for (phase, stage), pairs in groups.items():
        result = compare([p for p, _ in pairs], [m for _, m in pairs])
        print(f"{phase:8} {stage:5} n={len(pairs):3}  MAPE {result.mape:6.1%}  Kendall tau {result.kendall_tau:.3f}")
    quiet = {row[0] for row in rows if row[-1]}
    print(f"clean measurements: {len(quiet)} of {len({row[0] for row in rows})}")


if __name__ == "__main__":
    main()
