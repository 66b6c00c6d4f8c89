"""Fréchet distance of images of one denoiser by solver, shift of times and number of steps.

    python benchmarks/solver_steps.py [--cpu 60] [--seed 1] [--steps 2 3 4 6 8 16]

Trains a plain flow in DiT's proportions (7 x 7 pixels a patch, width 96, two layers) on Fashion-MNIST once, and draws
640 images from the same noise in every way, judged on the validation data.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of, summary
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model, read
from chipwise.training.loop.trainer import train

RUN_FILE = Path(__file__).parents[1] / "src/chipwise/examples/diffusion.yaml"
DESIGN = "8 steps p7 d96 L2 h3x32 gelu:384 fp32"
WAYS: tuple[dict[str, Any], ...] = ({}, {"solver": "multistep"}, {"solver": "multistep", "shift": 2.0})


def main() -> None:
    """Trains, draws and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", type=float, default=60.0, help="seconds of the training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 3, 4, 6, 8, 16])
    asked = parser.parse_args()
    spec = load_run(RUN_FILE)
    designs = (design_of(choices, spec=spec.space) for choices in spec.task_settings.references(spec.space))
    arch = next(design.arch for design in designs if summary(design) == DESIGN)
    with tempfile.TemporaryDirectory() as folder:
        task = spec.task_settings.open(
            spec.data, base=Path(spec.folder), folder=Path(folder) / "corpus", space=spec.space
        )
        task.prepare()
        data: Any = task.data(arch).load()
        recipe = Recipe(**task.recipe)
        result = train(arch, data, cpu_budget_s=asked.cpu, seed=asked.seed, folder=folder, recipe=recipe)
        model = load_model(arch, read(result.weights))
    print(f"{DESIGN}, {result.steps} steps of training")
    for way in WAYS:
        told = ", ".join(f"{name} {value}" for name, value in way.items()) or "euler"
        found = []
        for steps in asked.steps:
            images = data.drawn(model, split="validation", served=replace(arch.head, steps=steps, **way))
            found.append(f"{steps}: {float(data.distances(images, 'validation').mean()):.3f}")
        print(f"{told}: {'  '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
