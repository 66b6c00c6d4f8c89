"""Hybrid profiling against measuring everything: how much of the front a few well-chosen measurements find.

    python benchmarks/hybrid_profiling.py --n 400 --seeds 5 --out hybrid-profiling.csv
    python benchmarks/hybrid_profiling.py --n 80 --seeds 5 --real measured/ --runtime onnxruntime --out hybrid-real.csv

Candidates of examples/clinic.yaml get a made-up quality that grows with their parameters, with noise of its own for
each seed. Hybrid profiling starts from a calibration, measures one candidate at a time, learns from it, and stops when
no interval reaches beyond the front, or at a quarter of all candidates. The candidates that it measured within the
limit (the pool's 60th percentile of decode time) are compared with the front of everything; next to it stands the
calibrated model alone: those candidates of its front that really keep the limit.

Without ``--real`` the device is made up: the model assumes a machine with one set of rates; the device has others, each
rate off by a factor of up to exp(0.5), each candidate by 8 %, each measurement by 1 %. Calibration uses a dozen designs
of another kind.

With ``--real`` this machine is calibrated in ``--runtime`` and every candidate is measured once, a second or two each,
into the folder: ``spec.yaml`` (a copy), ``profile.json`` and ``measured.csv`` (seconds, corrected for drift since
calibration). Existing rows are used as they are, so the measuring may be interrupted. Hybrid profiling is then replayed
on those measurements and sees only those that it chooses.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.statistics import Z90
from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import (
    Prepared,
    cross_check,
    learn,
    predict_seconds,
    predictions,
    prepare,
    refit,
)
from chipwise.deploy.calibrate.random_models import export_nearest, random_designs
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.design.phases.measurement_choice import next_to_measure
from chipwise.design.run.spec import load_run
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.targets.cost_model import NotedMeasurement
from chipwise.errors import MeasurementError
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import SearchSpace
from provenance import stamp

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.machines import core_like, shaken

ACCIDENT, NOISE, RATES = 0.08, 0.01, 0.5
SHARE = 0.25  # of the candidates that may be measured
METRICS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")


@dataclass(frozen=True)
class Pool:
    """Candidates with their true latencies, the initial profile, and the error of a measurement."""

    profile: MachineProfile
    seen: Prepared
    noise: float


def main() -> None:
    """Runs all seeds, writes a row each, prints the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="candidates")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="measure on this machine, into this folder")
    parser.add_argument("--runtime", default="onnxruntime", help="of --real")
    parser.add_argument("--drawn", type=int, default=1, help="seed of the candidates of --real")
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    real = real_pool(args.real, args.spec, args.n, runtime=args.runtime, seed=args.drawn) if args.real else None
    rows: list[tuple[int, int, int, float, float]] = []
    for seed in range(args.seeds):
        pool = real or fake_pool(args.spec, args.n, seed)
        rows.append((seed, len(pool.seen.observed), *replay(pool, seed)))
        said = "seed {}: {} candidates, {} measured, hypervolume share {:.4f} (simulated alone {:.4f})"
        print(said.format(*rows[-1]), flush=True)
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("seed", "candidates", "measured", "hypervolume_share", "simulated_share"))
        writer.writerows(rows)
    stamp(args.out)
    print(f"worst share {min(row[3] for row in rows):.4f}, most measured {max(row[2] for row in rows)} of {rows[0][1]}")


def fake_pool(spec: Path, count: int, seed: int) -> Pool:
    """Candidates on a made-up device."""
    run = load_run(spec)
    space = SearchSpace(run.space)
    rng = np.random.default_rng(seed)
    designs = [space.design(row) for row in space.sample(count, rng)]
    believed = core_like()
    device = shaken(believed, random.Random(seed), off=RATES)

    def truth(chosen: Sequence[Design], workload: Workload) -> list[NotedMeasurement]:
        accidents = np.exp(ACCIDENT * rng.standard_normal(len(chosen)))
        found = []
        for design, accident in zip(chosen, accidents, strict=True):
            values = {}
            for phase, name in ((Phase.PREFILL, "ttft"), (Phase.DECODE, "tpot")):
                seconds = predict_seconds(device, design, phase, workload) * accident
                values |= {f"{name}_p50": seconds, f"{name}_p99": 1.2 * seconds}
            found.append(NotedMeasurement(design, workload, values))
        return found

    ours = prepare(believed, truth(random_designs(12, seed=seed), Workload(prompt_tokens=64, new_tokens=64)))
    rows = ours.to_rows()
    checks = believed.checks | cross_check(believed, ours, memory=False)
    profile = replace(refit(believed, ours, memory=False), checks=checks, calibration_models=rows)
    return Pool(profile, prepare(profile, truth(designs, run.workload)), NOISE)


def real_pool(folder: Path, spec: Path, count: int, *, runtime: str, seed: int) -> Pool:
    """Candidates on this machine; what ``folder`` lacks is measured."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "spec.yaml").exists():
        shutil.copy(spec, folder / "spec.yaml")
    run = load_run(folder / "spec.yaml")
    space = SearchSpace(run.space)
    kept = folder / "profile.json"
    if not kept.exists():
        calibrate(runtime=runtime).save(kept)
    profile = MachineProfile.load(kept)
    rows = space.sample(count, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory(prefix="chipwise-") as place:
        designs = [export_nearest(profile.runtime, space.design(row), Path(place))[0] for row in rows]
    table = folder / "measured.csv"
    if not table.exists():
        table.write_text(",".join(("candidate", *METRICS, "clean")) + "\n")
    with table.open() as stream:
        known = {int(line["candidate"]): line for line in csv.DictReader(stream)}
    for number in range(count):
        if number in known:
            continue
        with tempfile.TemporaryDirectory(prefix="chipwise-") as place:
            path = export_for(profile.runtime, designs[number], Path(place))
            try:
                found = measure(path, run.workload, runtime=profile.runtime, calibrated=profile.reference_s)
            except MeasurementError as error:
                print(f"candidate {number} failed: {error}")
                continue
        values = [f"{found.corrected(metric):.6g}" for metric in METRICS]
        with table.open("a") as stream:
            stream.write(",".join((str(number), *values, str(int(found.clean)))) + "\n")
        print(f"measured {number + 1} of {count}", flush=True)
    stamp(table)
    with table.open() as stream:
        lines = {int(line["candidate"]): line for line in csv.DictReader(stream)}
    truth = [
        NotedMeasurement(designs[number], run.workload, {metric: float(line[metric]) for metric in METRICS})
        for number, line in sorted(lines.items())
        if number < count
    ]
    return Pool(profile, prepare(profile, truth), 0.0)


def replay(pool: Pool, seed: int) -> tuple[int, float, float]:
    """Measurements that hybrid profiling took, its share of the whole hypervolume, and that of the model alone."""
    rng = np.random.default_rng(seed)
    profile, seen = pool.profile, pool.seen
    count = len(seen.observed)
    size = np.log([item.design.arch.parameters() for item in seen.observed])
    quality = 3.0 - 0.25 * (size - size.min()) + 0.02 * rng.standard_normal(count)
    true_s = np.array([item.seconds(Phase.DECODE, 0.5) for item in seen.observed])
    limit = float(np.quantile(true_s, 0.6))
    reference = np.array([quality.max() * 1.01, true_s.max() * 1.01])
    limits = np.array([np.inf, limit])
    measured = np.full((count, 2), np.nan)
    chosen: list[int] = []
    learned = profile
    while len(chosen) < int(SHARE * count):
        predicted_s = predictions(learned, seen)["decode"]
        wide = math.exp(Z90 * learned.checks["decode"].spread)
        low = np.stack([quality, predicted_s / wide], axis=1)
        high = np.stack([quality, predicted_s * wide], axis=1)
        best = next_to_measure(low, high, measured, limits, reference)
        if best is None:
            break
        chosen.append(best)
        measured[best] = quality[best], true_s[best] * math.exp(pool.noise * rng.standard_normal())
        learned = learn(profile, seen[chosen])
    points = np.stack([quality, true_s], axis=1)
    kept = [i for i in chosen if points[i, 1] <= limit]
    everything = front_volume(points[true_s <= limit], reference)
    believed_s = predictions(profile, seen)["decode"]
    hopeful = np.flatnonzero(believed_s <= limit)
    front = hopeful[non_dominated(np.stack([quality[hopeful], believed_s[hopeful]], axis=1))]
    simulated = front_volume(points[front[true_s[front] <= limit]], reference)
    return len(chosen), front_volume(points[kept], reference) / everything, simulated / everything


def front_volume(points: np.ndarray, reference: np.ndarray) -> float:
    """Hypervolume of the front of ``points``."""
    return hypervolume(points[non_dominated(points)], reference)


if __name__ == "__main__":
    main()
