"""Predicted against measured latency of random candidates of a space, before and after learning from measurements.

    python benchmarks/predicted_vs_measured.py --n 60 --runtime onnxruntime --out predicted-vs-measured.csv

Candidates are drawn uniformly from the space of examples/clinic.yaml (another with --spec), their weights are random.
One that the runtime cannot hold is replaced by its like that it can: for llama.cpp, every feed-forward is swiglu.
Writes P50 rows for each candidate, phase and stage. Stage ``calibrated`` is predicted from the profile alone. Stage
``learned`` is predicted by a profile that learnt from the other candidates but those of the same fold: of 60
candidates in 6 folds, each is predicted from 50 others. ``low_s`` and ``high_s`` bound nine in ten.

Every candidate is measured in ``--rounds`` rounds, each in a fresh process: where its memory comes to lie moves a small
model by some percent, so one process is not the truth. Learning is from the first round, as in a search; the truth is
the median over rounds. How far two rounds agree with each other is printed beside: no model can be expected to agree
better with either.

``measured_s`` is on the calibration's footing: the median of the clock's samples over what is believed of the drift of
the reference model since calibration; ``raw_s`` is that median itself, ``drift`` the factor. Candidates timed at a bad
moment are timed again after the others of the round, twice at most; ``clean`` is 0 where the machine was never quiet in
some round. Takes about ten minutes for 60 candidates on a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from pathlib import Path

import numpy as np

from chipwise.core.statistics import Z90
from chipwise.hardware import MachineProfile
from chipwise.ops import Phase
from chipwise.profile.calibrate import calibrate
from chipwise.profile.exporting import export_for
from chipwise.profile.harness import measure, measure_until_clean
from chipwise.profile.learning import Prepared, Sample, compare, learn, predictions, prepare
from chipwise.profile.measurement import Measurement
from chipwise.profile.random_models import nearest_supported
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
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each candidate")
    parser.add_argument("--repeats", type=int, default=2, help="further tries in each round of what was not clean")
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
    designs = [nearest_supported(args.runtime, space.design(row)) for row in rows]

    def timed(number: int) -> Measurement:
        with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
            return measure(
                export_for(args.runtime, designs[number], Path(folder)),
                run.workload,
                runtime=args.runtime,
                threads=args.threads,
                seconds=1.0,
                attempts=1,
                calibrated=profile.reference_s,
            )

    found: dict[int, list[Measurement]] = {i: [] for i in range(args.n)}
    for _ in range(args.rounds):
        wanted = sorted(found)
        for i, item in zip(
            wanted, measure_until_clean(wanted, timed, repeats=args.repeats, on_progress=progress), strict=True
        ):
            if isinstance(item, Measurement):
                found[i].append(item)
            else:
                print(f"candidate {i} failed: {item}")
                del found[i]
    names = [label(i, designs[i]) for i in found]
    samples = [Sample(design=designs[i], measured=rounds[0]) for i, rounds in found.items()]
    rows = table(names, samples, list(found.values()), profile, folds=args.folds)
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    report(rows)
    agreement(list(found.values()))


def progress(done: int, total: int) -> None:
    """A line every tenth measurement."""
    if done % 10 == 0 or done == total:
        print(f"measured {done} of {total}", flush=True)


def label(number: int, design: Design) -> str:
    """A candidate's name."""
    arch = design.arch
    return f"{number}-d{arch.d_model}-L{len(arch.layers)}-v{arch.vocab_size}-{design.weights}"


def table(
    names: list[str],
    samples: list[Sample],
    rounds: list[list[Measurement]],
    profile: MachineProfile,
    *,
    folds: int,
) -> list[tuple]:
    """All rows, both stages: learnt from ``samples``, compared with the medians over ``rounds``."""
    seen = prepare(profile, samples)
    rows = stage("calibrated", names, seen, rounds, list(range(len(samples))), profile)
    for fold in range(min(folds, len(samples))):
        left_out = list(range(fold, len(samples), folds))
        learned = learn(profile, seen[[i for i in range(len(samples)) if i % folds != fold]])
        rows += stage("learned", names, seen, rounds, left_out, learned)
    return rows


def stage(
    name: str,
    names: list[str],
    seen: Prepared,
    rounds: list[list[Measurement]],
    chosen: list[int],
    profile: MachineProfile,
) -> list[tuple]:
    """Rows of the candidates ``chosen``, as ``profile`` predicts them."""
    predicted = predictions(profile, seen[chosen])
    rows = []
    for phase, quantity in QUANTITIES.items():
        wide = math.exp(Z90 * profile.checks[phase.value].spread)
        for i, value in zip(chosen, predicted[phase.value], strict=True):
            raw = float(np.median([item.metric(f"{quantity}_p50") for item in rounds[i]]))
            corrected = float(np.median([item.corrected(f"{quantity}_p50") for item in rounds[i]]))
            bounds = (value, value / wide, value * wide)
            clean = int(all(item.clean for item in rounds[i]))
            rows.append((names[i], phase.value, name, *bounds, corrected, raw, raw / corrected, clean))
    return rows


def agreement(rounds: list[list[Measurement]]) -> None:
    """Prints how far the first two rounds agree with each other."""
    if any(len(found) < 2 for found in rounds):
        return
    for phase, quantity in QUANTITIES.items():
        first, second = ([found[turn].corrected(f"{quantity}_p50") for found in rounds] for turn in (0, 1))
        result = compare(first, second)
        said = (
            f"{phase.value:8} one round against another: MAPE {result.mape:.1%}  Kendall tau {result.kendall_tau:.3f}"
        )
        print(said)


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
