"""Effect of common design choices on quality: equal parameters, equal training, three seeds.

    python benchmarks/claims_quality.py --tokens runs/clinic/corpus --out benchmarks/claims-quality.csv
    python benchmarks/claims_quality.py --out benchmarks/claims-quality.csv --report     # trains nothing

The reference has width 96, 4 layers, 3 heads, SwiGLU, pre-norm RMSNorm, a tied table of 2,048 tokens: 0.64 M
parameters. Variants have as many (the feed-forward's width takes up the difference) unless their name says otherwise.
All see the same 400 k tokens (200 steps), in one order for a seed; steps are counted by a clock, so a busy machine
changes nothing but ``step_s``, the CPU seconds of an undisturbed step (the quickest tenth). ``--report`` prints each
variant's difference to the variant it is compared with, mean of the seeds ± standard error (their spread, pooled over
all variants), and what it becomes at equal CPU time: by step_s and the reference's own gain from more steps. Rows that
the file holds of today's recipe are not trained again; those of another recipe are dropped.

Columns: variant, seed, steps, parameters, bits_per_byte, int8, int4 (the first seed's weights rounded), step_s, recipe
(a digest of the trainer's settings).
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import resumable_rows
from chipwise.core.digest import digest
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.kinds.text.module import LayerModule
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop import trainer
from chipwise.training.loop.evaluate import load_model, quantised
from training_recipe import SIZES

COLUMNS = ("variant", "seed", "steps", "parameters", "bits_per_byte", "int8", "int4", "step_s", "recipe")
RECIPE = digest(asdict(trainer.Recipe()))
STEPS = 200
VOCABULARY = 2048
JUDGED_BYTES = 150_000  # of the validation text


def model(
    *, d: int = 96, depth: int = 4, kv: int | None = None, ffn: int, kind: str = "swiglu", tied: bool = True
) -> ArchSpec:
    """A uniform model of heads of 32."""
    gated = kind.endswith("glu")
    return uniform(
        vocab_size=VOCABULARY,
        d_model=d,
        depth=depth,
        heads=d // 32,
        kv_heads=kv,
        ffn_width=ffn,
        activation={"swiglu": "silu", "geglu": "gelu"}.get(kind, kind),
        gated=gated,
        tie_embeddings=tied,
    )


REFERENCE = model(ffn=256)


def equal(**shape) -> ArchSpec:
    """``model`` with the feed-forward width that gives it the reference's parameters."""
    at_8, at_16 = (model(ffn=width, **shape).parameters() for width in (8, 16))
    width = 8 + 8 * (REFERENCE.parameters() - at_8) / (at_16 - at_8)
    return model(ffn=round(width), **shape)


def in_pairs(arch: ArchSpec) -> ArchSpec:
    """A model whose every second layer reuses the weights of the layer before."""
    layers = (replace(layer, shares=i - 1) if i % 2 else layer for i, layer in enumerate(arch.layers))
    return replace(arch, layers=tuple(layers))


def convolved(**taps: int) -> ArchSpec:
    """The reference with short convolutions."""
    return replace(REFERENCE, layers=tuple(replace(layer, **taps) for layer in REFERENCE.layers))


VARIANTS: dict[str, tuple[ArchSpec, str]] = {  # name -> model, and the variant that it is compared with
    "reference": (REFERENCE, "reference"),
    "geglu": (equal(kind="geglu"), "reference"),
    "silu": (equal(kind="silu"), "reference"),
    "gelu": (equal(kind="gelu"), "reference"),
    "relu": (equal(kind="relu"), "reference"),
    "1 of 3 KV heads": (equal(kv=1), "reference"),
    "2 layers of 128": (equal(d=128, depth=2), "reference"),
    "8 layers of 64": (equal(d=64, depth=8), "reference"),
    "2 layers (fewer parameters)": (model(depth=2, ffn=256), "reference"),
    "4 layers in pairs (fewer parameters)": (in_pairs(REFERENCE), "2 layers (fewer parameters)"),
    "own head": (equal(tied=False), "reference"),
    "post-norm": (REFERENCE, "reference"),
    "convolutions before attention (0.2 % more parameters)": (convolved(attention_conv=4), "reference"),
    "convolutions before both blocks (0.4 % more parameters)": (convolved(attention_conv=4, ffn_conv=4), "reference"),
}


class PostNorm(LayerModule):
    """A post-norm layer, as in the first transformers: it normalises the sum, not the inputs of its blocks."""

    def forward(self, x_BTD, angles, cache):
        """The residual stream after the layer, and the layer's new cache."""
        y_BTD, cache = self.attention(x_BTD, angles, cache)
        x_BTD = self.attention_norm(x_BTD + y_BTD)
        return self.ffn_norm(x_BTD + self.ffn(x_BTD)), cache


LENGTHS = (100, 400)  # the reference with other budgets, for its gain from more steps


class Steps:
    """A clock that ticks once a step and remembers the CPU seconds that each took."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def __call__(self) -> float:
        """Number of calls: one before and one after each step."""
        self.at_s.append(time.process_time())
        return float(len(self.at_s))

    def step_s(self) -> float:
        """CPU seconds of an undisturbed step (10th percentile); NaN without steps."""
        return math.nan if len(self.at_s) < 2 else float(np.quantile(np.diff(self.at_s)[::2], 0.1))


def trained(name: str, seed: int, steps: int, store: TokenStore) -> dict[str, str]:
    """One row."""
    arch, clock = VARIANTS[name][0], Steps()
    data = store.tokens(VOCABULARY)
    layer = PostNorm if name == "post-norm" else LayerModule
    with tempfile.TemporaryDirectory() as room, mock.patch("chipwise.model.kinds.text.module.LayerModule", layer):
        result = trainer.train(
            arch,
            data,
            cpu_budget_s=steps,
            seed=seed,
            folder=room,
            max_validation_bytes=JUDGED_BYTES,
            checkpoint_every_s=math.inf,
            clock=clock,
        )
        forms = [
            data.quality(quantised(load_model(arch, result.weights), form), max_bytes=JUDGED_BYTES).bits_per_byte
            if not seed
            else None
            for form in ("int8", "int4")
        ]
    found = ["" if value is None else f"{value:.5f}" for value in (result.loss, *forms, clock.step_s())]
    found.append(RECIPE)
    return dict(zip(COLUMNS, (name, str(seed), str(steps), str(arch.parameters()), *found), strict=True))


def report(rows: list[dict[str, str]]) -> None:
    """Prints differences with their spread."""
    held = {(row["variant"], int(row["steps"]), int(row["seed"])): row for row in rows}
    bits = {key: float(row["bits_per_byte"]) for key, row in held.items()}
    lengths = {steps: [v for (name, n, _), v in bits.items() if (name, n) == ("reference", steps)] for steps in LENGTHS}
    gain = None
    if all(lengths.values()):
        gain = (np.mean(lengths[400]) - np.mean(lengths[100])) / math.log(4)  # by ln of steps, about the middle
        print(f"reference: {gain:+.3f} bits per byte for e times the steps")
    pairs, spreads = {}, []
    for name, (_, other) in VARIANTS.items():
        seeds = sorted({s for v, n, s in bits if (v, n) == (name, STEPS)} & {s for v, n, s in bits if v == other})
        pairs[name] = np.array([bits[name, STEPS, s] - bits[other, STEPS, s] for s in seeds])
        if len(seeds) > 1 and name != other:
            spreads.append(pairs[name].var(ddof=1))
    deviation = math.sqrt(np.mean(spreads)) if spreads else math.nan
    for name, (arch, other) in VARIANTS.items():
        if not len(pairs[name]):
            continue
        mine, base = ([row for (v, n, _), row in held.items() if (v, n) == (which, STEPS)] for which in (name, other))
        value = np.mean([float(row["bits_per_byte"]) for row in mine])
        slower = np.mean([float(r["step_s"]) for r in mine]) / np.mean([float(r["step_s"]) for r in base])
        line = f"{name}: {arch.parameters():,} parameters, {value:.4f}"
        if name != other:
            error = deviation / math.sqrt(len(pairs[name]))
            line += f", {pairs[name].mean():+.4f} ± {error:.4f} to {other}, a step takes {slower:.2f} times as long"
            if gain is not None:
                line += f", {pairs[name].mean() - gain * math.log(slower):+.4f} at equal CPU time"
        print(line)
    for form in ("int8", "int4"):
        lost = [float(row[form]) - float(row["bits_per_byte"]) for row in rows if row[form]]
        if not lost:
            continue
        print(f"{form} after training: {np.mean(lost):+.4f} mean of {len(lost)} models, most {max(lost):+.4f}")
    spread = [abs(bits[name, STEPS, 0] - bits[name, STEPS, 1]) for name in VARIANTS if (name, STEPS, 1) in bits]
    if spread:
        print(f"two seeds of one model differ by {np.mean(spread):.4f} in the mean, {max(spread):.4f} at most")


def main() -> None:
    """Trains what the file lacks, writes after each training, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), help="variants; all unless given")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--most", type=int, default=1_000, help="trainings of this call")
    parser.add_argument("--tokens", type=Path, help="folder that keeps the tokenised text")
    parser.add_argument("--report", action="store_true", help="only print what the file holds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for row in resumable_rows.read(options.out) if row["recipe"] == RECIPE]
    wanted = [(name, seed, STEPS) for seed in options.seeds for name in options.only or VARIANTS]
    wanted += [("reference", 0, steps) for steps in LENGTHS] if not options.only else []
    held = {(row["variant"], int(row["seed"]), int(row["steps"])) for row in rows}
    todo = [] if options.report else [case for case in wanted if case not in held][: options.most]
    with tempfile.TemporaryDirectory() as scratch:
        store = TokenStore(load_corpus({}), options.tokens or scratch, SIZES) if todo else None
        for name, seed, steps in todo:
            assert store is not None
            resumable_rows.add(rows, trained(name, seed, steps, store), options.out, COLUMNS)
    report(rows)


if __name__ == "__main__":
    main()
