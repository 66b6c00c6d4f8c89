"""Winner and reference design of a finished vision search, trained again alike with further seeds, and judged exported.

    python benchmarks/vision_seeds.py RUN [--seeds 3] [--cpu 60]

Prints the accuracy on the test images of each exported file (in its own weight format, one image at a time), means over
seeds, and how much lower the winner's error is. Both are trained for the same processor time. Times come from the run's
own measurement in turns, as its record holds it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from chipwise.run.spec import load_run
from chipwise.space.designs import design_of, summary
from chipwise.tasks.protocol import Exported, task_named
from chipwise.training.evaluate import read
from chipwise.training.trainer import Recipe, train


def main() -> None:
    """Trains and judges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cpu", type=float, default=60.0, help="seconds of each training")
    asked = parser.parse_args()
    record = json.loads((asked.run / "record.json").read_text())
    spec = load_run(asked.run_file)
    data = task_named("vision").open(spec.data, base=Path(spec.folder), folder=asked.run / "corpus", space=spec.space)
    errors: dict[str, list[float]] = {}
    for name in ("winner", "baseline"):
        trial = record["trials"][record[name]]
        design = design_of(trial["choices"], spec=spec.space)
        measured = trial.get("measured") or {}
        print(f"{name}: {summary(design)}; measured P50 {measured.get('ttft_p50', float('nan')) * 1e6:.1f} µs")
        for seed in range(1, asked.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                loaded, recipe = data.data(design.arch).load(), Recipe(**data.recipe)
                result = train(design.arch, loaded, cpu_budget_s=asked.cpu, seed=seed, folder=folder, recipe=recipe)
                item = Exported(design=design, weights=read(result.weights), folder=Path(folder))
                loss = data.losses(item, split="test")
            errors.setdefault(name, []).append(loss.loss)
            print(f"  seed {seed}: accuracy {1 - loss.loss:.2%} ± {1.645 * (loss.std_error or 0.0):.2%}", flush=True)
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    lower = 1 - means["winner"] / means["baseline"]
    print(f"error {means['winner']:.2%} against {means['baseline']:.2%}: {lower:.1%} lower")


if __name__ == "__main__":
    main()
