"""Predicted against measured latency and memory of random candidates, before and after learning from measurements.

    python benchmarks/predicted_vs_measured.py --n 20 --runtime onnxruntime --out predicted-vs-measured.csv

Candidates are drawn uniformly from the space of examples/clinic.yaml (another with --spec); their weights are random.
A candidate that the runtime does not support is replaced by the nearest design that it supports: for llama.cpp, every
feed-forward is gated with SiLU. The CSV has one row for each candidate, metric (P50 and P99 of TTFT and TPOT, peak
memory) and stage. Stage ``calibrated`` is predicted from the profile alone. Stage ``learned`` is predicted by a profile
that learned from the candidates of the other folds. ``low`` and ``high`` bound nine in ten.

Every candidate is measured in ``--rounds`` rounds, each in a fresh process: the placement of its memory changes a small
model's latency by several percent, so one process is not the truth. Learning uses the first round, as in a search; the
truth is the median over rounds. The agreement of two rounds is printed too: no model can agree better with either.

``measured`` is corrected for drift since calibration; ``raw`` is not. Candidates that were timed on a busy machine are
timed again after the others of the round, up to ``--repeats`` times; ``clean`` is 1 where the machine was quiet in
every round. Figures are printed for all candidates and for the clean ones. All values are in SI units. 20 candidates
take about four minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from chipwise.core.statistics import Z90
from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import Prepared, Sample, compare, learn, predictions, prepare, stored_bytes
from chipwise.deploy.calibrate.random_models import export_nearest
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.run.spec import load_run
from chipwise.errors import MeasurementError
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import SearchSpace
from provenance import stamp

METRICS = {  # name in a measurement, name in a profile's predictions, and the error that counts as good
    "ttft_p50": ("prefill", 0.05),
    "ttft_p99": ("prefill_p99", 0.15),
    "tpot_p50": ("decode", 0.05),
    "tpot_p99": ("decode_p99", 0.15),
    "peak_memory": ("memory", 0.02),
}
STAGES = ("calibrated", "learned")
COLUMNS = ("candidate", "metric", "stage", "predicted", "low", "high", "measured", "raw", "clean")
Row = dict[str, Any]
T = TypeVar("T")


def main() -> None:
    """Calibrates, measures, predicts, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20, help="random designs")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"), help="whose space and workload")
    parser.add_argument("--seed", type=int, default=1, help="of the candidates; calibration uses others")
    parser.add_argument("--profile", type=Path, help="a saved machine profile instead of calibrating")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each candidate")
    parser.add_argument(
        "--repeats", type=int, default=3, help="further tries in each round for candidates that were not clean"
    )
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
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        designs = [export_nearest(args.runtime, space.design(row), Path(folder))[0] for row in rows]

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
        items = measure_until_clean(wanted, timed, repeats=args.repeats, on_progress=progress)
        for i, item in zip(wanted, items, strict=True):
            if isinstance(item, Measurement):
                found[i].append(item)
            else:
                print(f"candidate {i} failed: {item}")
                del found[i]
    names = [label(i, designs[i]) for i in found]
    samples = [Sample(design=designs[i], measured=rounds[0]) for i, rounds in found.items()]
    rows = table(names, samples, list(found.values()), profile, folds=args.folds)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    stamp(args.out)
    report(rows)
    agreement(list(found.values()))


def measure_until_clean(
    items: Sequence[T],
    measure_one: Callable[[T], Measurement],
    *,
    repeats: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Measurement | MeasurementError]:
    """Each item's quietest measurement, or the reason why there is none, in the order of ``items``.

    Items whose measurement was not clean are measured again after all the others, at most ``repeats`` times. Items that
    failed are not tried again.

    Args:
        items: What to measure.
        measure_one: Measures one item once.
        repeats: Most further rounds.
        on_progress: Called with the number of measurements done and the total as far as it is known.
    """
    found: list[Measurement | MeasurementError | None] = [None] * len(items)
    wanted, done = list(range(len(items))), 0
    for _ in range(1 + repeats):
        total = done + len(wanted)
        for i in wanted:
            known = found[i]
            try:
                new = measure_one(items[i])
                if not isinstance(known, Measurement) or new.noise_level < known.noise_level:
                    found[i] = new
            except MeasurementError as error:
                found[i] = known or error
            done += 1
            if on_progress is not None:
                on_progress(done, total)
        wanted = [i for i in wanted if isinstance(item := found[i], Measurement) and not item.clean]
    return [item for item in found if item is not None]


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
) -> list[Row]:
    """All rows of both stages: learned from ``samples``, compared with the medians over ``rounds``."""
    seen = prepare(profile, samples)
    rows = stage_rows("calibrated", names, seen, rounds, list(range(len(samples))), profile)
    for fold in range(min(folds, len(samples))):
        left_out = list(range(fold, len(samples), folds))
        learned = learn(profile, seen[[i for i in range(len(samples)) if i % folds != fold]])
        rows += stage_rows("learned", names, seen, rounds, left_out, learned)
    return rows


def stage_rows(
    stage: str,
    names: list[str],
    seen: Prepared,
    rounds: list[list[Measurement]],
    chosen: list[int],
    profile: MachineProfile,
) -> list[Row]:
    """Rows of the candidates ``chosen``, as ``profile`` predicts them."""
    predicted = predictions(profile, seen[chosen])
    rows = []
    for metric, (check, _) in METRICS.items():
        for i, value in zip(chosen, predicted[check].tolist(), strict=True):
            item = seen.observed[i]
            spread = profile.check(check, stored_bytes(item.design, item.workload)).spread
            rows.append(
                {
                    "candidate": names[i],
                    "metric": metric,
                    "stage": stage,
                    "predicted": value,
                    "low": value / math.exp(Z90 * spread),
                    "high": value * math.exp(Z90 * spread),
                    "measured": float(np.median([found.corrected(metric) for found in rounds[i]])),
                    "raw": float(np.median([found.metric(metric) for found in rounds[i]])),
                    "clean": int(all(found.clean for found in rounds[i])),
                }
            )
    return rows


def agreement(rounds: list[list[Measurement]]) -> None:
    """Prints how far the first two rounds agree with each other."""
    if any(len(found) < 2 for found in rounds):
        return
    for metric in METRICS:
        first, second = ([found[turn].corrected(metric) for found in rounds] for turn in (0, 1))
        result = compare(first, second)
        print(f"{metric:11} one round against another: MAPE {result.mape:.1%}, Kendall tau {result.kendall_tau:.3f}")


def report(rows: list[Row]) -> None:
    """Prints errors, shares within their bounds and coverage by metric and stage, for all and for clean candidates."""
    candidates = {row["candidate"]: row["clean"] for row in rows}
    print(f"measured cleanly: {sum(candidates.values())} of {len(candidates)} candidates")
    for which, kept in (("all", rows), ("clean", [row for row in rows if row["clean"]])):
        for metric, (_, bound) in METRICS.items():
            for stage in STAGES:
                mine = [row for row in kept if (row["metric"], row["stage"]) == (metric, stage)]
                if mine:
                    print(f"{which:5} {metric:11} {stage:10} n={len(mine):3}  {figures(mine, bound)}")


def figures(rows: list[Row], bound: float) -> str:
    """The figures of one metric and stage."""
    predicted, measured = [row["predicted"] for row in rows], [row["measured"] for row in rows]
    off = np.abs(np.array(predicted) / measured - 1)
    inside = np.array([row["low"] <= row["measured"] <= row["high"] for row in rows])
    tau = compare(predicted, measured).kendall_tau
    return (
        f"within {bound:.0%}: {np.mean(off <= bound):.0%}, or inside: {np.mean((off <= bound) | inside):.0%}"
        f"  median error {np.median(off):.1%}, mean {np.mean(off):.1%}  inside the interval {np.mean(inside):.0%}"
        f"  Kendall tau {'undefined' if tau is None else f'{tau:.3f}'}"
    )


if __name__ == "__main__":
    main()
