"""Effect of each part of the training recipe, and of a model's shape, on validation bits per byte.

taskset -c 1 python benchmarks/training_recipe.py recipe --budget 20 --out training-recipe.csv
taskset -c 1 python benchmarks/training_recipe.py shapes --budget 60 --out training-shapes.csv
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop import trainer
from chipwise.training.loop.evaluate import load_model, quantised
from provenance import here

SIZES = (512, 1024, 2048, 4096, 8192)


class AdamWOnly:
    """The usual choice: AdamW for everything, decaying the layers' matrices alone."""

    def __init__(
        self, model: Any, *, matrix_rate: float, table_rate: float, weight_decay: float, **unused: float
    ) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and name.startswith("layers.")]
        rest = [p for name, p in named if p.ndim != 2 or not name.startswith("layers.")]
        self.adam = torch.optim.AdamW(
            [
                {"params": matrices, "rate": matrix_rate, "weight_decay": weight_decay},
                {"params": rest, "rate": table_rate, "weight_decay": 0.0},
            ],
            betas=(0.9, 0.95),
            fused=True,
        )

    def step(self, scale: float) -> None:
        """One step at ``scale`` times the learning rates."""
        for group in self.adam.param_groups:
            group["lr"] = group["rate"] * scale
        self.adam.step()

    def state(self) -> dict[str, torch.Tensor]:
        """Does nothing: these runs are not resumed."""
        return {}


def shape(
    *,
    d: int = 128,
    depth: int = 4,
    vocab: int = 2048,
    kv: int | None = None,
    head: int = 32,
    ffn: int | None = None,
    kind: str = "swiglu",
    tied: bool = True,
) -> ArchSpec:
    """A uniform model; ``ffn`` defaults to 8/3 of the width (4 times for plain kinds)."""
    gated = kind.endswith("glu")
    activation: Any = {"swiglu": "silu", "geglu": "gelu"}.get(kind, kind)
    heads = d // head
    return uniform(
        vocab_size=vocab,
        d_model=d,
        depth=depth,
        heads=heads,
        kv_heads=kv or max(1, heads // 2),
        head_size=head,
        ffn_width=ffn or (round(d * 8 / 3 / 32) * 32 if gated else 4 * d),
        activation=activation,
        gated=gated,
        tie_embeddings=tied,
    )


RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "AdamW, rate 0.003": {"matrix_rate": 0.003, "table_rate": 0.003, "optimiser": AdamWOnly},
    "AdamW, rate 0.006": {"matrix_rate": 0.006, "table_rate": 0.006, "optimiser": AdamWOnly},
    "AdamW, rate 0.010": {"matrix_rate": 0.010, "table_rate": 0.006, "optimiser": AdamWOnly},
    "matrix rate 0.006": {"matrix_rate": 0.006},
    "matrix rate 0.016": {"matrix_rate": 0.016},
    "table rate 0.012": {"table_rate": 0.012},
    "table rate 0.036": {"table_rate": 0.036},
    "5 rounds": {"rounds": 5},
    "8 windows a batch": {"batch_windows": 8},
    "32 windows a batch": {"batch_windows": 32},
    "decay over 30 %": {"decay_share": 0.3},
    "decay over 75 %": {"decay_share": 0.75},
    "no weight decay": {"weight_decay": 0.0},
    "momentum 0.9": {"momentum": 0.9},
    "momentum 0.95": {"momentum": 0.95},
    "fp32": {"precision": "fp32"},
}

SHAPES: dict[str, dict[str, Any]] = {
    "d128 L4": {},
    "d192 L2": {"d": 192, "depth": 2},
    "d128 L2": {"depth": 2},
    "d192 L4": {"d": 192},
    "d256 L2": {"d": 256, "depth": 2},
    "d96 L2": {"d": 96, "depth": 2},
    "d128 L1": {"depth": 1},
    "d128 L2 vocab 1024": {"depth": 2, "vocab": 1024},
    "d128 L2 vocab 4096": {"depth": 2, "vocab": 4096},
    "d96 L4": {"d": 96},
    "d128 L4 vocab 1024": {"vocab": 1024},
    "d128 L4 vocab 4096": {"vocab": 4096},
    "d128 L4 relu": {"kind": "relu"},
    "d128 L4 geglu": {"kind": "geglu"},
    "d128 L4 kv 1": {"kv": 1},
    "d128 L4 ffn 192": {"ffn": 192},
    "d128 L4 ffn 640": {"ffn": 640},
    "d128 L4 untied": {"tied": False},
    "d128 L4 heads of 64": {"head": 64, "kv": 1},
    "d256 L4": {"d": 256},
    "d128 L6": {"depth": 6},
    "d192 L1": {"d": 192, "depth": 1},
    "d128 L4 vocab 512": {"vocab": 512},
    "d128 L4 vocab 8192": {"vocab": 8192},
    "d384 L4": {"d": 384},
}


def main() -> None:
    """Trains every named variant and prints and writes one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["recipe", "shapes"])
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds of each training")
    parser.add_argument("--only", nargs="*", help="names of variants; all unless given")
    parser.add_argument("--width", type=int, default=128, help="of the model on which recipes are compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=Path, help="folder that keeps the tokenised text")
    parser.add_argument("--folder", type=Path, help="folder that keeps the trainings, so that larger budgets go on")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        store = TokenStore(load_corpus({}), options.tokens or scratch, SIZES)
        table = RECIPES if options.what == "recipe" else SHAPES
        for name in options.only or table:
            changes = dict(table[name])
            optimiser = changes.pop("optimiser", trainer.Optimiser)
            precision = changes.pop("precision", None)
            arch = shape(d=options.width) if options.what == "recipe" else shape(**changes)
            recipe = replace(Recipe(), **changes) if options.what == "recipe" else Recipe()
            folder = (options.folder or Path(scratch)) / name.replace(" ", "-")
            data = store.tokens(arch.vocab_size)
            with mock.patch.object(trainer, "Optimiser", optimiser):
                result = trainer.train(
                    arch,
                    data,
                    cpu_budget_s=options.budget,
                    seed=options.seed,
                    folder=folder,
                    recipe=recipe,
                    precision=precision,
                    max_validation_bytes=150_000,
                )
            row = {
                "variant": name if options.what == "shapes" else f"{name} (d{options.width})",
                "cpu_s": options.budget,
                "bits_per_byte": round(result.loss, 4),
                "perplexity": round(result.perplexity, 2),
                "parameters": arch.parameters(),
                "steps": result.steps,
                "tokens_per_s": round(result.tokens / result.cpu_s),
                "disturbed": round(result.spent_cpu_s / result.cpu_s, 2),
            }
            if options.what == "shapes":
                for form in ("int8", "int4"):
                    quality = data.quality(quantised(load_model(arch, result.weights), form), max_bytes=150_000)
                    row[form] = round(quality.bits_per_byte, 4)
            print(*row.values(), sep="  ", flush=True)
            new = not options.out.exists()
            with options.out.open("a", newline="") as file:
                row |= here()
                writer = csv.DictWriter(file, fieldnames=list(row))
                if new:
                    writer.writeheader()
                writer.writerow(row)


if __name__ == "__main__":
    main()
