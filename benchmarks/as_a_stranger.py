"""This machine predicted from a data sheet and the results of a kit, against measuring everything.

    python benchmarks/as_a_stranger.py --out as-a-stranger.csv

Designs are drawn from the space of examples/clinic.yaml and bred to keep only what ONNX Runtime serves; what each is
worth is the published law of loss, the same for everybody. A kit with all of them is packed, run here and read back, so
every time is one that a colleague could have sent. ``--judged`` designs are what is chosen from; the others teach.

With 0, 10 and 50 measurements of others, the target ``--like`` (a data sheet) predicts the judged designs. For each of
20 limits on the time per token, spread over their times, it picks the design of least expected loss that holds the
limit with 90 % probability. ``promised_s`` and ``measured_s`` are that design's; ``limits_broken`` is 1 where it breaks
the limit. ``hypervolume_share`` is what the designs on the predicted front reach, at their measured times, of the front
that measuring every judged design gives. Rows with all judged designs measured are the search that measures everything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import chipwise
from chipwise.core.csvfile import write_rows
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.kits import kits
from chipwise.deploy.kits.kits import Kit
from chipwise.design.limits import Constraint
from chipwise.design.phases.kit_folder import described
from chipwise.design.run.spec import RunSpec, TargetSpec, load_run
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.targets.chance import Bounds, holds
from chipwise.design.targets.sheet import sheet_target
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.laws.laws import BESIROGLU
from provenance import stamp

COUNTS, LIMITS, CONFIDENCE = (0, 10, 50), 20, 0.9
TOKENS = 20e9  # that the law's loss is of
COLUMNS = (
    "measurements", "limit_s", "trial", "expected_loss", "promised_s", "measured_s", "limits_broken",
    "hypervolume_share", "median_error", "inside",
)  # fmt: skip


def main() -> None:
    """Packs, measures, teaches, picks, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--spec", default="examples/clinic.yaml")
    parser.add_argument("--like", default="xeon-8480-plus", help="the data sheet nearest to this machine")
    parser.add_argument("--judged", type=int, default=60, help="designs that are chosen from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="results of the kit; measured here unless they are there")
    options = parser.parse_args()
    given = load_run(options.spec)
    spec = replace(
        given, target=TargetSpec(device=options.like, runtime="onnxruntime"), constraints={}, targets=(), tasks=()
    )
    space = SearchSpace(spec.space)
    rows = np.unique(space.sample(options.judged + max(COUNTS) + 50, np.random.default_rng([options.seed, 5])), axis=0)
    rows = np.random.default_rng(options.seed).permutation(rows)[: options.judged + max(COUNTS)]
    designs = [_named(space.design(row), i) for i, row in enumerate(rows)]
    results = options.results or options.out.with_suffix(".kit.json")
    if not results.exists():
        _measure(spec, designs, results, device=options.like)
    taken = dict(_read(results))
    judged = [design for design in designs[: options.judged] if design.arch.name in taken]
    teaching = [design for design in designs[options.judged :] if design.arch.name in taken]
    found = _picks(spec, space, judged, teaching, taken)
    write_rows(options.out, found, COLUMNS)
    stamp(options.out)
    _sum_up(found, len(judged))


def _named(design: Design, number: int) -> Design:
    return replace(design, arch=replace(design.arch, name=f"design-{number}"))


def _measure(spec: RunSpec, designs: Sequence[Design], results: Path, *, device: str) -> None:
    """Packs a kit of all designs and runs it here, as on any other machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = []
        for design in designs:
            file = export_for("onnxruntime", design, folder / "models", stem=design.arch.name)
            models.append(described(file, folder, design, "onnxruntime"))
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kits.write(
            folder,
            Kit(
                created=created,
                version=chipwise.__version__,
                name="stranger",
                workload=spec.workload,
                models=tuple(models),
            ),
        )
        script = [sys.executable, str(folder / kits.SCRIPT), "--device", device, "--rounds", "2", "--seconds", "0.6"]
        done = subprocess.run([*script, "--out", str(results.resolve())], check=False)
        if done.returncode not in (0, 1):  # 1: some designs could not be measured; they are named
            raise SystemExit(done.returncode)


def _read(results: Path) -> list[tuple[str, dict[str, float]]]:
    return [
        (
            model.name,
            {
                "ttft_p50": taken.percentile("ttft", 0.5),
                "tpot_p50": taken.percentile("tpot", 0.5),
                **({} if taken.peak_memory_bytes is None else {"peak_memory": taken.peak_memory_bytes}),
            },
        )
        for model, taken in kits.read_results(results).measurements()
    ]


def _picks(
    spec: RunSpec, space: SearchSpace, judged: list[Design], teaching: list[Design], taken: dict[str, dict[str, float]]
) -> list[dict[str, object]]:
    loss = BESIROGLU.nats_per_token([design.arch.parameters() for design in judged], TOKENS)
    truth = np.array([taken[design.arch.name]["tpot_p50"] for design in judged])
    limits = np.quantile(truth, np.linspace(0.05, 0.95, LIMITS))
    target = sheet_target(spec, space)
    found = []
    for count in (*COUNTS, None):
        if count is not None:
            target.learn([(design, taken[design.arch.name]) for design in teaching[:count]])
            guesses: list[Bounds] = [target.predict(design)["tpot_p50"] for design in judged]
        else:  # what was measured is known
            guesses = [(value, value, value) for value in truth]
        expected = np.array([bounds[0] for bounds in guesses], float)
        share = _volume(loss, truth, _front(loss, expected)) / _volume(loss, truth, _front(loss, truth))
        inside = np.mean([b[1] <= t <= b[2] for b, t in zip(guesses, truth, strict=True)])  # type: ignore[operator]
        shared = {
            "measurements": f"all {len(judged)}" if count is None else count,
            "hypervolume_share": share,
            "median_error": float(np.median(np.abs(expected / truth - 1))),
            "inside": float(inside),
        }
        for limit_s in limits:
            limit = Constraint(metric="tpot_p50", op="<=", limit=float(limit_s), text="")
            allowed = [i for i, bounds in enumerate(guesses) if holds(limit, bounds, CONFIDENCE)]
            if not allowed:
                found.append({**shared, "limit_s": limit_s, "trial": "none"})
                continue
            best = min(allowed, key=lambda i: loss[i])
            found.append(
                {
                    **shared,
                    "limit_s": limit_s,
                    "trial": judged[best].arch.name,
                    "expected_loss": loss[best],
                    "promised_s": expected[best],
                    "measured_s": truth[best],
                    "limits_broken": int(truth[best] > limit_s),
                }
            )
    return found


def _front(loss: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    return np.flatnonzero(non_dominated(np.stack([loss, seconds], axis=1)))


def _volume(loss: np.ndarray, truth: np.ndarray, chosen: np.ndarray) -> float:
    """Hypervolume of the chosen designs at their measured times, loss and logarithm of time each over its range."""
    points = np.stack([loss, np.log(truth)], axis=1)
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points[chosen] - low) / (high - low)
    return float(hypervolume(scaled[non_dominated(scaled)], np.full(2, 1.1)))


def _sum_up(found: list[dict[str, object]], judged: int) -> None:
    for count in dict.fromkeys(row["measurements"] for row in found):
        rows = [row for row in found if row["measurements"] == count]
        picked = [row for row in rows if row["trial"] != "none"]
        broken = sum(int(str(row["limits_broken"])) for row in picked)
        print(
            f"{count!s:>7} measurements: {100 * float(str(rows[0]['hypervolume_share'])):.1f} % of the hypervolume, "
            f"{broken} of {len(picked)} limits broken ({len(rows) - len(picked)} without an answer), median error "
            f"{100 * float(str(rows[0]['median_error'])):.1f} %, {100 * float(str(rows[0]['inside'])):.0f} % inside"
        )


if __name__ == "__main__":
    main()
