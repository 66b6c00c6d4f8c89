"""Retrains the winner, the reference design and random search's winner of a domain equally, with more seeds.

    python benchmarks/domain_seeds.py examples/vision.yaml [--run RUN] [--random RUN] [--seeds 3] [--cpu 60] [--out CSV]

A search is made where a folder holds no finished run; random search has the same file, budget and machine, with
``search: {strategy: random}``. Every design is trained for the same processor time, exported in its own weight format
and judged by its task on the test data. Prints the metric and the loss of each seed, means over seeds, how much lower
the winner's loss is, and the medians of a request's time, measured in turns.

The largest reference design within the limits is not always the strongest after a short training. Those of its family
with about a half and a quarter of its parameters are trained once, too; the best of the three on the validation data
is the rival. Where the winner draws images in other steps, or by another solver, the rival served like it is a further
contender: what of the difference is the design's, and what the serving's.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.design.run.spec import RunSpec, load_run
from chipwise.model.kinds.image.choices import SHIFT, SOLVER
from chipwise.model.space.designs import design_of, summary
from chipwise.training.data.dataset import Split
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import read
from chipwise.training.loop.trainer import train
from chipwise.training.tasks.protocol import Exported
from finished import finished
from provenance import stamp

COLUMNS = ("contender", "design", "seed", "metric", "value", "loss", "half_width", "time_p50_s")


def main() -> None:
    """Searches where needed, trains and judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("--run", type=Path, help="folder of the search; runs/<name> unless given")
    parser.add_argument("--random", type=Path, help="folder of random search; runs/<name>-random unless given")
    parser.add_argument("--no-random", action="store_true", help="leave random search out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cpu", type=float, default=60.0, help="seconds of each training")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time")
    parser.add_argument("--out", type=Path, help="CSV file")
    asked = parser.parse_args()
    spec = replace(load_run(asked.run_file), prior="shipped")  # each search alone
    folder = asked.run or Path("runs") / spec.name
    own = finished(spec, folder)
    chosen = [("winner", own, own.winner), ("reference", own, own.baseline)]
    if not asked.no_random:
        at_random = replace(spec, search=replace(spec.search, strategy="random"))
        other = finished(at_random, asked.random or folder.with_name(f"{folder.name}-random"))
        chosen.append(("random", other, other.winner))
    smaller = [] if own.baseline is None else smaller_references(spec, own.trial(own.baseline).choices)
    with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        work = Work(asked.run_file, folder, asked.cpu)
        rivals: list[Mapping[str, Any]] = []
        if own.baseline is not None:
            rivals = [own.trial(own.baseline).choices, *smaller]
            tries = [pool.submit(work.trained, choices, 0, "validation") for choices in rivals]
            for choices, tried in zip(rivals, tries, strict=True):
                told = summary(design_of(choices, spec=spec.space))
                loss = spec.task_settings.metric.text(tried.result()["loss"])
                print(f"reference {told}: {loss} on validation data", flush=True)
            best = min(range(len(rivals)), key=lambda i: tries[i].result()["loss"])
        contenders: dict[str, Mapping[str, Any]] = {}
        for name, record, trial in chosen:
            if trial is None:
                print(f"{name}: there is none")
            else:
                contenders[name] = rivals[best] if name == "reference" else record.trial(trial).choices
        alike = {**contenders.get("reference", {}), **served(contenders.get("winner", {}))}
        if "reference" in contenders and alike != contenders["reference"]:
            contenders["reference served alike"] = alike
        seconds = measured_in_turns(spec, contenders)
        jobs = [
            (name, pool.submit(work.trained, choices, seed, "test"))
            for name, choices in contenders.items()
            for seed in range(1, asked.seeds + 1)
        ]
        rows: list[dict[str, object]] = []
        for name, job in jobs:
            row = {"contender": name, **job.result(), "time_p50_s": seconds[name]}
            rows.append(row)
            half = f" ± {row['half_width']:.4g}" if row["half_width"] else ""
            text = spec.task_settings.metric.text(row["loss"])
            print(f"{name} {row['design']}, seed {row['seed']}: {text}{half}; {seconds[name] * 1e6:.1f} us", flush=True)
    means = {name: float(np.mean([row["loss"] for row in rows if row["contender"] == name])) for name in contenders}
    for name in contenders:
        if name != "winner" and "winner" in means:
            lower = 1 - means["winner"] / means[name]
            faster = seconds[name] / seconds["winner"]
            print(
                f"loss {means['winner']:.4g} of the winner, {means[name]:.4g} of {name}: {lower:.1%} lower, "
                f"{faster:.2f} times as fast"
            )
    if asked.out is not None:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        stamp(asked.out)


def served(choices: Mapping[str, Any]) -> Mapping[str, Any]:
    """Choices of a design that concern only sampling, on which training does not depend."""
    return {name: choices[name] for name in ("steps", SOLVER, SHIFT) if name in choices}


def smaller_references(spec: RunSpec, choices: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Reference designs of the same family and format with about a half and a quarter of the parameters."""

    def size(of: Mapping[str, Any]) -> int:
        return design_of(of, spec=spec.space).arch.parameters()

    family = spec.task_settings.family(choices)
    alike = [
        other
        for other in spec.task_settings.references(spec.space)
        if spec.task_settings.family(other) == family and other["weights"] == choices["weights"]
    ]
    found: list[Mapping[str, Any]] = []
    for share in (2, 4):
        nearest = min(alike, key=lambda other: abs(size(other) * share - size(choices)))
        if nearest not in (*found, choices):
            found.append(nearest)
    return found


def measured_in_turns(spec: RunSpec, contenders: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Median seconds of a request of each design, with random weights, at the machine's own speed."""
    runtime, threads = spec.target.runtime, spec.target.threads
    with tempfile.TemporaryDirectory() as place:
        paths = [
            export_for(runtime, design_of(choices, spec=spec.space), Path(place), stem=name)
            for name, choices in contenders.items()
        ]
        found = measure_alternately(paths, spec.workload, rounds=4, extra_rounds=4, runtime=runtime, threads=threads)
    seconds = {}
    for name, measured in zip(contenders, found, strict=True):
        if isinstance(measured, Exception):
            raise measured
        seconds[name] = measured.settled("ttft_p50")
    return seconds


@dataclass(frozen=True, slots=True)
class Work:
    """A job: train a design of a run file for ``cpu_s`` CPU seconds and evaluate it."""

    run_file: Path
    folder: Path
    cpu_s: float

    def trained(self, choices: Mapping[str, Any], seed: int, split: Split) -> dict[str, object]:
        """One row of the table: the design's metric on ``split`` after a training with ``seed``."""
        spec = load_run(self.run_file)
        task = spec.task_settings
        data = task.open(spec.data, base=Path(spec.folder), folder=self.folder / "corpus", space=spec.space)
        design = design_of(choices, spec=spec.space)
        with tempfile.TemporaryDirectory() as place:
            loaded, recipe = data.data(design.arch).load(), Recipe(**data.recipe)
            result = train(design.arch, loaded, cpu_budget_s=self.cpu_s, seed=seed, folder=place, recipe=recipe)
            weights = read(result.weights)
            export(design, weights, Path(place) / "model.onnx")
            losses = data.losses(Exported(design=design, weights=weights, folder=Path(place)), split=split)
        half = 1.645 * losses.std_error if losses.std_error is not None else None
        return {
            "design": summary(design),
            "seed": seed,
            "metric": task.metric.name,
            "value": task.metric.shown(losses.loss),
            "loss": losses.loss,
            "half_width": half,
        }


if __name__ == "__main__":
    main()
