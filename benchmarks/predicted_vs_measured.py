"""Predicted against measured latency of random candidates of a space, after a fresh calibration (or a saved one).

    python benchmarks/predicted_vs_measured.py --n 40 --runtime onnxruntime --out predicted-vs-measured.csv

Candidates are drawn uniformly from the space of examples/clinic.yaml (another with --spec), their weights are random.
Writes medians, one row for each candidate and phase; stage is ``calibrated``: predicted from the profile alone, nothing
learnt from other candidates. Prints mean absolute percentage error and Kendall's tau of medians, tails and peak memory.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.cost import estimate
from chipwise.deploy.onnx import export, random_weights
from chipwise.hardware import MachineProfile
from chipwise.ops import Phase, Workload
from chipwise.profile.calibrate import calibrate, compare
from chipwise.profile.harness import measure
from chipwise.run import load_run
from chipwise.space import SearchSpace
from chipwise.spec import Design

QUANTITIES = {"prefill": "ttft", "decode": "tpot"}


def main() -> None:
    """Calibrates, predicts, measures, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=40, help="random designs")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"), help="whose space and workload")
    parser.add_argument("--seed", type=int, default=1, help="of the candidates; calibration uses others")
    parser.add_argument("--profile", type=Path, help="a saved machine profile instead of calibrating")
    parser.add_argument("--attempts", type=int, default=3, help="to find the machine quiet, per design")
    args = parser.parse_args()
    run = load_run(args.spec)
    if args.profile:
        profile = MachineProfile.load(args.profile)
    else:
        profile = calibrate(runtime=args.runtime, threads=args.threads)
        print(f"calibrated {profile.machine.name}\n{profile.check_errors}")
    space = SearchSpace(run.space)
    rows = space.sample(args.n, np.random.default_rng(args.seed))
    designs = [space.design(row) for row in rows]
    found = [row for i, design in enumerate(designs) for row in compare_one(i, design, run.workload, profile, args)]
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["candidate", "phase", "stage", "predicted_s", "measured_s", "clean"])
        writer.writerows(
            (name, phase, "calibrated", predicted, measured, clean)
            for name, phase, statistic, predicted, measured, clean in found
            if statistic == "p50"
        )
    report(found)


def compare_one(number: int, design: Design, workload: Workload, profile: MachineProfile, args) -> list[tuple]:
    """The rows of one design."""
    graphs = [lower(design, workload, phase) for phase in Phase]
    predicted = estimate(design, graphs[0], graphs[1], workload, profile)
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        path = export(design, random_weights(design.arch, seed=number), Path(folder) / "model.onnx")
        measured = measure(path, workload, runtime=args.runtime, threads=args.threads, attempts=args.attempts)
    name = f"{number}-d{design.arch.d_model}-L{len(design.arch.layers)}-v{design.arch.vocab_size}-{design.weights}"
    rows = [
        (
            name,
            phase,
            statistic,
            predicted.metric(f"{quantity}_{statistic}").value,
            measured.metric(f"{quantity}_{statistic}"),
        )
        for phase, quantity in QUANTITIES.items()
        for statistic in ("p50", "p99")
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
