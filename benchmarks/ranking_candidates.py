"""Cost of ranking 1 to 512 candidates, predicted and measured on this machine in ONNX Runtime with one thread.

    python benchmarks/ranking_candidates.py [--calibration 90] [--profile FILE] [--designs 6] [--out FILE.csv]

Calibrates for ranking models as a search does (nodes, random whole models, and designs of the example's space with
another seed), then takes SASRec and HSTU of two layers of width 64 and designs drawn from the space of
``examples/ranking.yaml``, in FP32 and int8 in turns. Each ranks 1, 8, 32, 128 and 512 candidates in two ways:
request-centric (one pass over the history and all candidates) and candidate by candidate (as many requests of one
candidate, in one batch). Each is predicted before it is measured, at the machine's own speed: in the moments when no
neighbour slowed it. Printed are the errors, the cost over that of one candidate, and how many requests a second one
thread serves so that 99 of 100 are answered within ``--p99`` milliseconds by the clock, where requests come at random
(Poisson) and wait their turn.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import predict_seconds
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.design.run.spec import load_run
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from provenance import stamp

EXAMPLE = Path(__file__).parent.parent / "examples" / "ranking.yaml"
CANDIDATES = (1, 8, 32, 128, 512)
SEED = 2_026
ARRIVALS = 20_000


def rate_within(service_s: Sequence[float], limit_s: float, *, seed: int = 0) -> float:
    """Highest rate of requests at which 99 of 100 are answered within ``limit_s``, waiting included.

    One server, first come first served, Poisson arrivals; service times are drawn from those measured. 0 where even a
    request that does not wait takes longer.

    References:
        Waiting times by recursion: Lindley 1952, The theory of queues with a single server.
    """
    random = np.random.default_rng(seed)
    service = random.choice(np.asarray(service_s), ARRIVALS)
    gaps = random.exponential(1.0, ARRIVALS)

    def p99(rate: float) -> float:
        steps = np.concatenate(([0.0], service[:-1] - gaps[1:] / rate)).cumsum()
        waited = steps - np.minimum.accumulate(steps)
        return float(np.quantile(waited + service, 0.99))

    if np.quantile(service, 0.99) > limit_s:
        return 0.0
    low, high = 0.0, 1 / float(service.mean())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p99(middle) <= limit_s else (low, middle)
    return low


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=float, default=90.0, help="seconds")
    parser.add_argument("--profile", type=Path, help="where the calibration is kept; read if it is there")
    parser.add_argument("--designs", type=int, default=6, help="drawn from the example's space, beside the two")
    parser.add_argument("--p99", type=float, default=10.0, help="milliseconds")
    parser.add_argument("--out", type=Path, help="rows as CSV")
    asked = parser.parse_args()
    if asked.profile and asked.profile.exists():
        profile = MachineProfile.load(asked.profile)
    else:
        own = SearchSpace(load_run(EXAMPLE).space).drawn
        profile = calibrate(seconds=asked.calibration, kind="ranking", own=own)
        if asked.profile:
            profile.save(asked.profile)
    print(f"calibrated: {profile.checks['prefill']}; {'; '.join(profile.notes) or 'machine quiet'}")
    rows: list[dict[str, Any]] = []
    for name, design in designs(asked.designs):
        print(f"{name}: {summary(design)}, history of {design.arch.stem.history}")
        for row in compared(design, profile, limit_s=asked.p99 / 1e3):
            rows.append({"design": name, "summary": summary(design), **row})
            one = next(r for r in rows if r["design"] == name and r["way"] == row["way"])
            each = f"{row['measured_s'] * 1e6:10,.0f} µs, predicted {row['predicted_s'] * 1e6:10,.0f}"
            served = f", {row['requests_per_s']:,.0f} requests/s" if row["way"] == "shared" else ""
            over = f"{row['measured_s'] / one['measured_s']:6.1f} times one"
            print(f"  {row['candidates']:4} {row['way']:6} {each} ({row['error']:+.1%}); {over}{served}", flush=True)
    for way in ("shared", "apart"):
        for count in (*CANDIDATES, None):
            print_errors([r for r in rows if r["way"] == way and count in (None, r["candidates"])], way, count)
    if asked.out:
        with asked.out.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        stamp(asked.out)


def designs(count: int) -> Iterator[tuple[str, Design]]:
    """SASRec and HSTU, and ``count`` designs of the example's space."""
    spec = load_run(EXAMPLE).space
    fixed = {"d_model": 64, "depth": 2, "head_size": 32, "vocab_size": 1, "tie_embeddings": False, "sharing": "none"}
    for name, mixing, ffn in (("SASRec", "attention", "relu"), ("HSTU", "hstu", "none")):
        layers = [{"heads": 2, "kv_heads": 2, "ffn": ffn, "ffn_width": 64}] * 2
        kinds = {"mixing": mixing, "table": "full", "score": "similarity", "weights": "fp32", "layers": layers}
        yield name, design_of({**fixed, **kinds}, spec=spec)
    space = SearchSpace(spec)
    for number, row in enumerate(space.sample(count, np.random.default_rng(SEED))):
        yield f"drawn {number}", Design(arch=space.design(row).arch, weights=("fp32", "int8")[number % 2])


def compared(design: Design, profile: MachineProfile, *, limit_s: float) -> Iterator[dict[str, Any]]:
    """Predicted and measured seconds of each number of candidates, in one pass and one by one."""
    with tempfile.TemporaryDirectory() as folder:
        for count in CANDIDATES:
            for way, each, batch in (("shared", count, 1), ("apart", 1, count)):
                chosen = Design(arch=with_candidates(design.arch, each), weights=design.weights)
                workload = Workload(prompt_tokens=1, new_tokens=1, batch=batch)
                predicted = predict_seconds(profile, chosen, Phase.PREFILL, workload)
                repeats = int(np.clip(1.5 / predicted, 12, 300))
                found = measure(
                    export_for("onnxruntime", chosen, Path(folder)),
                    workload,
                    repeats=repeats,
                    prefills=repeats,
                    seconds=0.4,
                    attempts=4,
                    calibrated=profile.reference_s,
                )
                measured = found.settled("ttft_p50")
                yield {
                    "weights": design.weights,
                    "candidates": count,
                    "way": way,
                    "predicted_s": predicted,
                    "measured_s": measured,
                    "error": predicted / measured - 1,
                    "clean": found.clean,
                    "wall_p50_s": float(np.median(found.ttft_s)),
                    "wall_p99_s": float(np.quantile(found.ttft_s, 0.99)),
                    "requests_per_s": rate_within(found.ttft_s, limit_s) if way == "shared" else 0.0,
                }


def print_errors(rows: Sequence[dict[str, Any]], way: str, count: int | None) -> None:
    """Median and largest error of some rows."""
    off = np.abs([row["error"] for row in rows])
    named = "all" if count is None else f"{count} candidates"
    clean = np.mean([bool(row["clean"]) for row in rows])
    print(f"{way}, {named}: median error {np.median(off):.1%}, largest {off.max():.1%}, {clean:.0%} timed when quiet")


if __name__ == "__main__":
    main()
