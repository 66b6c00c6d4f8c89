"""Predicted against measured medians in a browser, ExecuTorch or LiteRT: random designs of a space, one thread.

    python benchmarks/browser.py --n 30 --out browser.csv
    python benchmarks/browser.py --n 30 --runtime executorch --out executorch.csv
    python benchmarks/browser.py --n 30 --spec examples/vision.yaml --profile images.json --out images.csv

Calibrates the runtime ``browser`` (ONNX Runtime Web) or another with random models, then measures designs drawn from
the space of examples/clinic.yaml (another with --spec) in ``--rounds`` rounds, in turns (A B, B A, …). ``measured_s``
is the time of undisturbed passes (``own_speed`` in ``core/statistics.py``) over all rounds; processor time of the
thread counts where that is less, as on a busy machine. ``again`` compares a model with itself: the ratio of the times
of odd and even rounds. Unlike in ``chipwise measure``, all models share one process, because starting one for each
takes most of the time; so memory is not compared. A design that the runtime lacks is replaced by the nearest that it
has.

With --native the native ONNX Runtime measures the same designs in turns (``native_s``), which shows how differently the
two order them.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import tempfile
from pathlib import Path

import numpy as np

from chipwise.core.statistics import own_speed
from chipwise.deploy.calibrate import calibrate as calibration
from chipwise.deploy.calibrate.learning import Sample, compare, predictions, prepare
from chipwise.deploy.calibrate.random_models import export_nearest
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure import harness, worker
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.run.spec import load_run
from chipwise.errors import ChipwiseError
from chipwise.hardware.device import MachineProfile
from chipwise.model.space.search_space import SearchSpace
from provenance import stamp

COLUMNS = ("design", "weights", "d_model", "layers", "vocab_size", "metric", "predicted_s", "measured_s", "again",
           "native_s", "load")  # fmt: skip


def ask_here(request: dict, **how: object) -> dict:
    """Answers in this process, whose browser stays open, instead of in a new one."""
    if request["runtime"] == "onnxruntime":
        return ASK(request, **how)
    cpus = os.sched_getaffinity(0)
    try:
        reply = worker.run(request | {"memory_limit_bytes": None, "reference": None} | FEWER)
        for name in ("ttft", "tpot"):
            wall, thread = reply[f"{name}_s"], reply[f"{name}_cpu_s"]
            if thread and own_speed(thread) < own_speed(wall):
                reply[f"{name}_s"] = thread
        unknown = {"peak_memory_bytes": None}  # of a process that had other models before
        return reply | unknown | {"reference_s": {"compute_s": [1e-3] * 5, "memory_s": [1e-3] * 5}}  # no drift
    finally:
        os.sched_setaffinity(0, cpus)
        gc.enable()


ASK = harness.ask_worker
FEWER = {"min_steps": 63, "min_prefills": 16, "warm_up_s": 0.1, "seconds": 1.0}


def main() -> None:
    """Calibrates, measures, predicts, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=30, help="random designs")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", type=int, default=60, help="random models of the calibration")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"), help="whose space and workload")
    parser.add_argument("--profile", type=Path, help="kept and used again; RUNTIME-profile.json unless given")
    parser.add_argument("--runtime", choices=("browser", "executorch", "litert"), default="browser")
    parser.add_argument("--native", action="store_true", help="measure in native ONNX Runtime too")
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    args.profile = args.profile or Path(f"{args.runtime}-profile.json")
    harness.ask_worker = ask_here
    run = load_run(args.spec)
    space = SearchSpace(run.space)
    kind = run.space.kind.calibration
    profile = calibrated(args, kind)
    drawn = [space.design(row) for row in space.sample(args.n, np.random.default_rng(1))]
    found: list[list[Measurement]] = [[] for _ in drawn]
    native: list[list[Measurement]] = [[] for _ in drawn]
    with tempfile.TemporaryDirectory() as room:
        made = [export_nearest(args.runtime, design, Path(room) / str(i)) for i, design in enumerate(drawn)]
        designs, files = [each[0] for each in made], [each[1] for each in made]
        natively = (
            [export_for("onnxruntime", each, Path(room) / f"{i}-native") for i, each in enumerate(designs)]
            if args.native
            else []
        )
        for turn in range(args.rounds):
            for i in list(range(args.n))[:: 1 if turn % 2 == 0 else -1]:
                how = {"threads": 1, "seconds": 1.0, "attempts": 1, "calibrated": profile.reference_s}
                found[i].append(harness.measure(files[i], run.workload, runtime=args.runtime, timeout_s=120.0, **how))
                if args.native:
                    how["calibrated"] = None
                    native[i].append(harness.measure(natively[i], run.workload, runtime="onnxruntime", **how))
                quantity = "ttft" if kind else "tpot"
                print(f"round {turn + 1}, design {i}: {typical(found[i][-1:], quantity):.2e} s", flush=True)
    rows = table(profile, designs, found, native)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    stamp(args.out)
    report(rows)


def calibrated(args: argparse.Namespace, kind: str) -> MachineProfile:
    """The profile in the file of ``--profile``, which is made if it is missing; a stopped calibration goes on."""
    if args.profile.exists():
        return MachineProfile.load(args.profile)
    calibration.MODELS["alone"] = (args.models, args.models)
    profile = calibration.calibrate(
        runtime=args.runtime,
        kind=kind,
        on_progress=lambda step, share: print(f"calibration: {step} {share:.0%}", flush=True),
        partial=args.profile.with_suffix(".partial"),
    )
    profile.save(args.profile)
    print(f"calibrated {profile.machine.name}\n{profile.check_errors}", flush=True)
    return profile


def typical(rounds: list[Measurement], quantity: str) -> float:
    """Seconds of undisturbed passes in all ``rounds``."""
    return own_speed([s for each in rounds for s in (each.tpot_s if quantity == "tpot" else each.ttft_s)])


def table(profile: MachineProfile, designs: list, found: list, native: list) -> list[dict]:
    """One row for each design and phase."""
    predicted = predictions(
        profile, prepare(profile, [Sample(design=d, measured=f[0]) for d, f in zip(designs, found, strict=True)])
    )
    rows = []
    for metric, check in (("ttft", "prefill"), ("tpot", "decode")):
        if check == "decode" and not designs[0].arch.vocab_size:  # it answers in one pass
            continue
        for i, design in enumerate(designs):
            halves = [typical(found[i][start::2], metric) for start in (0, 1)]
            rows.append(
                {
                    "design": design.digest,
                    "weights": design.weights,
                    "d_model": design.arch.d_model,
                    "layers": len(design.arch.layers),
                    "vocab_size": design.arch.vocab_size,
                    "metric": f"{metric}_p50",
                    "predicted_s": float(predicted[check][i]),
                    "measured_s": typical(found[i], metric),
                    "again": max(halves) / min(halves),
                    "native_s": typical(native[i], metric) if native[i] else "",
                    "load": os.getloadavg()[1],
                }
            )
    return rows


def report(rows: list[dict]) -> None:
    """Errors against the repeatability, and rank correlations."""
    for metric in ("ttft_p50", "tpot_p50"):
        mine = [row for row in rows if row["metric"] == metric]
        if not mine:
            continue
        ratios = np.array([row["predicted_s"] / row["measured_s"] for row in mine])
        off, again = np.abs(ratios - 1), np.array([row["again"] - 1 for row in mine])
        within = np.mean((off <= 0.12) | (off <= 2 * again))
        result = compare([row["predicted_s"] for row in mine], [row["measured_s"] for row in mine])
        print(
            f"{metric} n={len(mine)}: median error {np.median(off):.1%}, mean {off.mean():.1%}, within 12 %: "
            f"{np.mean(off <= 0.12):.0%}, or twice the repeatability: {within:.0%}; odd and even rounds differ by "
            f"{np.median(again):.1%} (median), {np.quantile(again, 0.9):.1%} (nine in ten); median of predicted over "
            f"measured {np.median(ratios):.3f}; Kendall tau {result.kendall_tau:.3f}"
        )
        if all(row["native_s"] for row in mine):
            natively = compare([row["native_s"] for row in mine], [row["measured_s"] for row in mine])
            best = min(mine, key=lambda row: row["native_s"])
            here = min(mine, key=lambda row: row["measured_s"])
            print(
                f"  native against this runtime: Kendall tau {natively.kendall_tau:.3f}; the natively fastest takes "
                f"{best['measured_s'] / here['measured_s']:.2f} times the fastest there"
            )


if __name__ == "__main__":
    try:
        main()
    except ChipwiseError as error:
        raise SystemExit(f"error: {error}") from None
