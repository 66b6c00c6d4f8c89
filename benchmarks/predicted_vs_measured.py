"""Predicted against measured latency of random candidates of a space, before and after learning from measurements.

    python benchmarks/predicted_vs_measured.py --n 60 --runtime onnxruntime --out predicted-vs-measured.csv

Candidates are drawn uniformly from the space of examples/clinic.yaml (another with --spec), their weights are random.
One that the runtime cannot hold is replaced by its like that it can: for llama.cpp, every feed-forward is swiglu.
Writes P50 rows for each candidate, phase and stage. Stage ``calibrated`` is predicted from the profile alone. Stage
``learned`` is predicted by a profile that learnt from the other candidates but those of the same fold: of 60
candidates in 6 folds, each is predicted from 50 others. ``low_s`` and ``high_s`` bound nine in ten.

``measured_s`` is on the calibration's footing: the median of the clock's samples over the drift of the reference model
since calibration; ``raw_s`` is that median itself, ``drift`` the factor. Candidates timed at a bad moment are timed
again after the others, twice at most; ``clean`` is 0 where the machine was never quiet. Takes about eight minutes for
60 candidates.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from pathlib import Path

import numpy as np

from chipwise.cost.estimate import Z90
from chipwise.hardware import MachineProfile
from chipwise.ops import Phase
from chipwise.predict.learn import learn
from chipwise.profile.calibrate import calibrate
from chipwise.profile.calibrate_models import held_by
from chipwise.profile.exporting import export_for
from chipwise.profile.harness import measure
from chipwise.profile.measurement import Measurement
from chipwise.profile.refit import Prepared, Sample, compare, predictions, prepare
from chipwise.profile.session import measure_session
from chipwise.run import load_run
from chipwise.space import SearchSpace
from chipwise.spec import Design

QUANTITIES = {Phase.PREFILL: "ttft", Phase.DECODE: "tpot"}
COLUMNS = ("candidate", "phase", "stage", "predicted_s", "low_s", "high_s", "measured_s", "raw_s", "drift", "clean")


def main() -> None:
    """Calibrates, measures, predicts, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=60, help="random designs")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"), help="whose space and workload")
    parser.add_argument("--seed", type=int, default=1, help="of the candidates; calibration uses others")
    parser.add_argument("--profile", type=Path, help="a saved machine profile instead of calibrating")
    parser.add_argument("--repeats", type=int, default=2, help="further rounds of what was not clean")
    parser.add_argument("--folds", type=int, default=6, help="of the learned stage")
    args = parser.parse_args()
    run = load_run(args.spec)
    if args.profile:
        profile = MachineProfile.load(args.profile)
    else:
        profile = calibrate(runtime=args.runtime, threads=args.threads)
        print(f"calibrated {profile.machine.name}\n{profile.check_errors}", flush=True)
    space = SearchSpace(run.space)
    rows = space.sample(args.n, np.random.default_rng(args.seed))
    designs = [held_by(args.runtime, space.design(row)) for row in rows]

    def timed(number: int) -> Measurement:
        with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
            return measure(
                export_for(args.runtime, designs[number], Path(folder)),
                run.workload,
                runtime=args.runtime,
                threads=args.threads,
                seconds=1.0,
                attempts=1,
                calibrated=profile.anchors,
            )

    found = measure_session(range(args.n), timed, repeats=args.repeats, told=progress)
    failed = [(i, item) for i, item in enumerate(found) if not isinstance(item, Measurement)]
    for i, error in failed:
        print(f"candidate {i} failed: {error}")
    kept = {i: item for i, item in enumerate(found) if isinstance(item, Measurement)}
    samples = [Sample(design=designs[i], measured=item) for i, item in kept.items()]
    names = [label(i, designs[i]) for i in kept]
    rows = table(names, samples, profile, folds=args.folds)
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    report(rows)


def progress(done: int, total: int) -> None:
    """A line every tenth measurement."""
    if done % 10 == 0 or done == total:
        print(f"measured {done} of {total}", flush=True)


def label(number: int, design: Design) -> str:
    """A candidate's name."""
    arch = design.arch
    return f"{number}-d{arch.d_model}-L{len(arch.layers)}-v{arch.vocab_size}-{design.weights}"


def table(names: list[str], samples: list[Sample], profile: MachineProfile, *, folds: int) -> list[tuple]:
    """All rows, both stages."""
    seen = prepare(profile, samples)
    rows = stage("calibrated", names, seen, list(range(len(samples))), profile)
    for fold in range(min(folds, len(samples))):
        left_out = list(range(fold, len(samples), folds))
        learned = learn(profile, seen[[i for i in range(len(samples)) if i % folds != fold]])
        rows += stage("learned", names, seen, left_out, learned)
    return rows


def stage(name: str, names: list[str], seen: Prepared, chosen: list[int], profile: MachineProfile) -> list[tuple]:
    """Rows of the candidates ``chosen``, as ``profile`` predicts them."""
    predicted = predictions(profile, seen[chosen])
    rows = []
    for phase, quantity in QUANTITIES.items():
        wide = math.exp(Z90 * profile.checks[phase.value].spread)
        for i, value in zip(chosen, predicted[phase.value], strict=True):
            measured = seen.observed[i].measured
            raw = measured.metric(f"{quantity}_p50")
            corrected = measured.corrected(f"{quantity}_p50")
            bounds = (value, value / wide, value * wide)
            rows.append((names[i], phase.value, name, *bounds, corrected, raw, raw / corrected, int(measured.clean)))
    return rows


def report(rows: list[tuple]) -> None:
    """Prints errors, rank agreement and how many truths lie in their intervals, by phase and stage."""
    for phase in QUANTITIES:
        for name in ("calibrated", "learned"):
            mine = [row for row in rows if row[1:3] == (phase.value, name)]
            for what, column in (("", 6), (" (drift not corrected)", 7)):
                result = compare([row[3] for row in mine], [row[column] for row in mine])
                inside = np.mean([row[4] <= row[column] <= row[5] for row in mine])
                print(
                    f"{phase.value:8} {name:10} n={len(mine):3}  MAPE {result.mape:6.1%}  "
                    f"Kendall tau {result.kendall_tau:.3f}  inside the interval {inside:.0%}{what}"
                )
    quiet = {row[0] for row in rows if row[-1]}
    print(f"clean measurements: {len(quiet)} of {len({row[0] for row in rows})}")


if __name__ == "__main__":
    main()
