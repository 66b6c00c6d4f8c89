"""Hybrid profiling against measuring everything, on a fake device whose truth is known.

    python benchmarks/hybrid_profiling.py --n 400 --seeds 5 --out hybrid-profiling.csv

Candidates of examples/clinic.yaml have a made-up quality that grows with their parameters, with an accident of their
own. The model believes a machine with one set of rates; the device has others: every rate off by a factor of up to
exp(0.5), every candidate by an accident of 8 %, a measurement by 1 %. Hybrid profiling starts from a calibration on a
dozen designs of another kind, measures one candidate at a time, learns from it, and stops when no interval reaches past
the front, or at a quarter of all candidates. What it measured within the limit is compared with the front of
everything; beside it stands what believing the calibrated model alone gives: of its front, those that really keep the
limit.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.cost.estimate import Z90
from chipwise.hardware import CheckError, Curve, Machine, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.ops import Phase, Workload
from chipwise.predict.learn import learn
from chipwise.profile.refit import cross_check, predict_seconds, predictions, prepare, refit
from chipwise.profile.samples import random_designs
from chipwise.run import load_run
from chipwise.run.costing import Noted
from chipwise.run.profiling import next_to_measure
from chipwise.search.pareto import hypervolume, non_dominated
from chipwise.space import SearchSpace

ACCIDENT, NOISE, RATES = 0.08, 0.01, 0.5
SHARE = 0.25  # of the candidates that may be measured


def main() -> None:
    """Runs all seeds, writes a row each, prints the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=400, help="candidates")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    rows = []
    for seed in range(args.seeds):
        rows.append((seed, args.n, *compare(args.spec, args.n, seed)))
        said = "seed {}: {} candidates, {} measured, hypervolume share {:.4f} (simulated alone {:.4f})"
        print(said.format(*rows[-1]), flush=True)
    with args.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("seed", "candidates", "measured", "hypervolume_share", "simulated_share"))
        writer.writerows(rows)
    print(f"worst share {min(row[3] for row in rows):.4f}, most measured {max(row[2] for row in rows)} of {args.n}")


def compare(spec: Path, count: int, seed: int) -> tuple[int, float, float]:
    """Measurements that hybrid profiling took, its share of the whole hypervolume, and that of the model alone."""
    run = load_run(spec)
    space = SearchSpace(run.space)
    rng = np.random.default_rng(seed)
    designs = [space.design(row) for row in space.sample(count, rng)]
    believed = machine()
    device = shaken(believed, random.Random(seed))

    def truth(chosen, workload: Workload) -> list[Noted]:
        accidents = np.exp(ACCIDENT * rng.standard_normal(len(chosen)))
        found = []
        for design, accident in zip(chosen, accidents, strict=True):
            values = {}
            for phase, name in ((Phase.PREFILL, "ttft"), (Phase.DECODE, "tpot")):
                seconds = predict_seconds(device, design, phase, workload) * accident
                values |= {f"{name}_p50": seconds, f"{name}_p99": 1.2 * seconds}
            found.append(Noted(design, workload, values))
        return found

    ours = prepare(believed, truth(random_designs(12, seed=seed), Workload(prompt_tokens=64, new_tokens=64)))
    lessons = {phase.value: table.lessons() for phase, table in ours.tables.items()}
    checks = believed.checks | cross_check(believed, ours, memory=False)
    profile = replace(refit(believed, ours, memory=False), checks=checks, lessons=lessons)
    true = truth(designs, run.workload)
    all_seen = prepare(profile, true)
    size = np.log([design.arch.parameters() for design in designs])
    quality = 3.0 - 0.25 * (size - size.min()) + 0.02 * rng.standard_normal(count)
    true_s = np.array([item.values["tpot_p50"] for item in true])
    limit = float(np.quantile(true_s, 0.6))
    reference = np.array([quality.max() * 1.01, true_s.max() * 1.01])
    limits = np.array([np.inf, limit])
    measured = np.full((count, 2), np.nan)
    chosen: list[int] = []
    learned = profile
    while len(chosen) < int(SHARE * count):
        predicted_s = predictions(learned, all_seen)["decode"]
        wide = math.exp(Z90 * learned.checks["decode"].spread)
        low = np.stack([quality, predicted_s / wide], axis=1)
        high = np.stack([quality, predicted_s * wide], axis=1)
        best = next_to_measure(low, high, measured, limits, reference)
        if best is None:
            break
        chosen.append(best)
        measured[best] = quality[best], true_s[best] * math.exp(NOISE * rng.standard_normal())
        learned = learn(profile, all_seen[chosen])
    points = np.stack([quality, true_s], axis=1)
    kept = [i for i in chosen if points[i, 1] <= limit]
    everything = front_volume(points[true_s <= limit], reference)
    believed_s = predictions(profile, all_seen)["decode"]
    hopeful = np.flatnonzero(believed_s <= limit)
    front = hopeful[non_dominated(np.stack([quality[hopeful], believed_s[hopeful]], axis=1))]
    simulated = front_volume(points[front[true_s[front] <= limit]], reference)
    return len(chosen), front_volume(points[kept], reference) / everything, simulated / everything


def front_volume(points, reference) -> float:
    """Hypervolume of the front of ``points``."""
    return hypervolume(points[non_dominated(points)], reference)


def machine() -> MachineProfile:
    """A machine of about a CPU core's rates."""
    terms = {
        f"matmul.{weights}.{shape}": {
            "node": 2e-6,
            "in": 1e-10,
            "out": 2e-10,
            "products": 2e-11 if shape == "matrix" else 0,
        }
        for weights in ("fp32", "int8", "int4")
        for shape, products in (("vector", 0.0), ("matrix", 2e-11))
    }
    attention = {"node": 4e-6, "head": 2e-7, "score": 1e-10, "product": 5e-11, "value": 1e-10, "rotated": 2e-10}
    terms |= {"attention.step": attention, "attention.prompt": dict(attention)}
    for name in ("norm.rmsnorm", "norm.skip_rmsnorm", "norm.layernorm", "gather"):
        terms[name] = {"node": 1e-6, "row": 1e-8, "value": 2e-10}
    for function in ("relu", "gelu", "gelu_tanh", "silu", "mul", "add"):
        terms[f"elementwise.{function}"] = {"node": 1e-6, "value": 3e-10}
    curve = Curve(working_set_bytes=(1e6, 3.2e7), s_per_byte=(1.5e-11, 4e-11))
    check = CheckError(models=12, mape=0.1, spread=0.1)
    return MachineProfile(
        machine=Machine(name="fake", cpu="fake", cores=1, memory_bytes=10**10),
        runtime="fake",
        runtime_version="1",
        threads=1,
        created="",
        terms=terms,
        curves={name: curve for name in terms if name.startswith("matmul")},
        passes={phase.value: PassCost(call_s=1e-5, per_logit_s=2e-10, scale=1.0) for phase in Phase},
        memory=MemoryCost(base_bytes=6e7, per_table_byte=1.0, per_matrix_byte={"fp32": 1.0, "int8": 1.0, "int4": 1.0}),
        tails={phase.value: Tail(ratio=1.2, extra_s=0.0) for phase in Phase},
        checks={"prefill": check, "decode": check, "memory": check},
    )


def shaken(profile: MachineProfile, generator: random.Random) -> MachineProfile:
    """The same machine with every rate off by up to exp(±RATES)."""

    def off() -> float:
        return math.exp(generator.uniform(-RATES, RATES))

    terms = {model: {name: rate * off() for name, rate in rates.items()} for model, rates in profile.terms.items()}
    curves = {}
    for name, curve in profile.curves.items():
        factor = off()
        curves[name] = replace(curve, s_per_byte=tuple(rate * factor for rate in curve.s_per_byte))
    return replace(profile, terms=terms, curves=curves)


if __name__ == "__main__":
    main()
