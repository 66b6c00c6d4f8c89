"""Winner, reference design and random search's winner of a domain, trained again alike with further seeds.

    python benchmarks/domain_seeds.py examples/vision.yaml [--run RUN] [--random RUN] [--seeds 3] [--cpu 60] [--out CSV]

A search is made where a folder holds no finished run; random search has the same file, budget and machine, with
``search: {strategy: random}``. Every design is trained for the same processor time, exported in its own weight format
and judged by its task on the test data. Prints the metric and the loss of each seed, means over seeds, how much lower
the winner's loss is, and times: those that each run measured of its own designs, in turns.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise import api
from chipwise.deploy.onnx import export
from chipwise.reporting.record import RunRecord, load
from chipwise.run import load_run
from chipwise.run.spec import RunSpec
from chipwise.space.designs import design_of, summary
from chipwise.tasks.protocol import Exported, TaskData, task_named
from chipwise.training.evaluate import read
from chipwise.training.trainer import Recipe, train

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
    parser.add_argument("--out", type=Path, help="CSV file")
    asked = parser.parse_args()
    spec = load_run(asked.run_file)
    folder = asked.run or Path("runs") / spec.name
    own = finished(spec, folder)
    chosen = [("winner", own, own.winner), ("reference", own, own.baseline)]
    if not asked.no_random:
        at_random = replace(spec, search=replace(spec.search, strategy="random"))
        other = finished(at_random, asked.random or folder.with_name(f"{folder.name}-random"))
        chosen.append(("random", other, other.winner))
    task = task_named(spec.task)
    data = task.open(spec.data, base=Path(spec.folder), folder=folder / "corpus", space=spec.space)
    rows: list[dict[str, object]] = []
    for name, record, trial in chosen:
        if trial is None:
            print(f"{name}: there is none")
            continue
        rows += trained_again(name, record, trial, spec, data, seeds=asked.seeds, cpu_s=asked.cpu)
    means = {name: float(np.mean([row["loss"] for row in rows if row["contender"] == name])) for name, _, _ in chosen}
    for name in ("reference", "random"):
        if not np.isnan(means.get(name, np.nan)):
            lower = 1 - means["winner"] / means[name]
            print(f"loss {means['winner']:.4g} of the winner, {means[name]:.4g} of {name}: {lower:.1%} lower")
    if asked.out is not None:
        with asked.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


def finished(spec: RunSpec, folder: Path) -> RunRecord:
    """The record of a search, which is made, or ended, where it is not finished."""
    record = folder / "record.json"
    if not record.exists() or load(record).status != "finished":
        api.search(spec, out=folder, resume=folder.exists())
    return load(record)


def trained_again(
    name: str, record: RunRecord, trial: int, spec: RunSpec, data: TaskData, *, seeds: int, cpu_s: float
) -> list[dict[str, object]]:
    """One row a seed of a trial's design."""
    task, found = task_named(spec.task), record.trial(trial)
    design = design_of(found.choices, spec=spec.space)
    measured = (found.measured or {}).get(task.pace)
    told = "not measured" if measured is None else f"measured {task.pace} {measured * 1e6:.1f} us"
    print(f"{name}: {summary(design)}; {told}")
    rows: list[dict[str, object]] = []
    for seed in range(1, seeds + 1):
        with tempfile.TemporaryDirectory() as place:
            loaded, recipe = data.data(design.arch).load(), Recipe(**data.recipe)
            result = train(design.arch, loaded, cpu_budget_s=cpu_s, seed=seed, folder=place, recipe=recipe)
            weights = read(result.weights)
            export(design, weights, Path(place) / "model.onnx")
            losses = data.losses(Exported(design=design, weights=weights, folder=Path(place)), split="test")
        half = 1.645 * losses.std_error if losses.std_error is not None else None
        shown = task.metric.shown(losses.loss)
        print(f"  seed {seed}: {task.metric.text(losses.loss)}" + (f" ± {half:.4g}" if half else ""), flush=True)
        rows.append(
            dict(
                zip(
                    COLUMNS,
                    (name, summary(design), seed, task.metric.name, shown, losses.loss, half, measured),
                    strict=True,
                )
            )
        )
    return rows


if __name__ == "__main__":
    main()
