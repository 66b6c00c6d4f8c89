"""Fits the law of texts that a search begins with (``training/laws/scaling.py``, ``START``) to real trainings.

    python benchmarks/real/text_law.py

Short trainings are those of ``text.csv`` (0.4 passes over the text, differences of recipe removed), long ones those of
``convolutions.csv`` (1 to 1.7 passes) and ``expert.csv`` (5.7 to 11 passes), which weigh ``LONG`` times as much, since
a search's final training is as long. Floor and coefficients are fitted for each of a few exponents and values of
``Law.repeats`` by relative non-negative least squares; convolutions change losses as ``training/laws/operators.py``
says. Prints the best fit for each value of ``repeats`` and, for the law of today, each long training. Values of 4 to 5
fit best; the error of others is up to twice as large.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from expert import DRAWN, drawn
from operators import rows_of
from past import without_recipe

from chipwise.core.statistics import nnls
from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of
from chipwise.training.laws.operators import TEXT
from chipwise.training.laws.scaling import START, Law

HERE = Path(__file__).parent
BYTES = 4_879_467  # of the training text of clinic
PER_TOKEN = {8192: 4.643, 4096: 3.996, 2048: 3.315, 1024: 2.671}  # bytes, of that text, by vocabulary
SEARCHED = {  # designs of searches in expert.csv
    "d128 L2 h4/4 swiglu:384 v8192 tied int8": drawn(128, 2, (4, 4), 384, 8192, "none", tied=True),
    "d128 L3 h2/1 swiglu:384 v8192 tied int8": drawn(128, 3, (2, 1), 384, 8192, "none", tied=True),
}
LONG = 30.0
EXPONENTS, REPEATS = ((0.2, 0.3, 0.4, 0.5), (0.25, 0.3, 0.34, 0.4, 0.5)), (2.0, 3.0, 4.0, 5.0, 8.0, math.inf)


def long_trainings() -> list[tuple[str, Mapping[str, Any], float, float]]:
    """Name, choices, tokens and validation loss of each long training."""
    found = []
    with (HERE / "convolutions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            width, layers, ffn = (int(row[name]) for name in ("width", "layers", "ffn_width"))
            choices = drawn(width, layers, (3, 3), ffn, int(row["vocab_size"]), row["conv"], tied=False)
            loss = float(row["validation_bits_per_byte"])
            found.append((f"d{width} L{layers} conv:{row['conv']}", choices, float(row["tokens"]), loss))
    with (HERE / "expert.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            choices = DRAWN.get(row["contender"]) or SEARCHED.get(row["design"])
            if choices is not None and row["weights"] == "int8":
                loss = float(row["validation_bits_per_byte"])
                found.append((row["design"], choices, float(row["tokens"]), loss))
    shape = DRAWN["small-conv"]  # 4,000 steps, of docs/notes/training.md
    return [*found, ("the same, 7 passes", shape, 8.192e6, 1.074)]


def changed(choices: Mapping[str, Any], tokens: float) -> float:
    """Change of the ln loss by convolutions."""
    operator = TEXT.operators["conv"].get(choices.get("conv", "none"))
    if operator is None:
        return 0.0
    if choices["depth"] == 1 and operator.one_layer is not None:
        operator = operator.one_layer
    return float(np.interp(math.log(tokens), np.log(list(operator.loss)), list(operator.loss.values())))


def main() -> None:
    """Prints the fits."""
    space = load_run(HERE.parents[1] / "examples" / "clinic.yaml").space
    short = rows_of("text", "1")
    points = [
        ("", row["choices"], float(row["tokens"]), float(loss))
        for row, loss in zip(short, without_recipe(short), strict=True)
    ] + long_trainings()
    sizes = []
    for _, choices, _, _ in points:
        arch = design_of(choices, spec=replace(space, head_size=(choices["head_size"],)), name="point").arch
        sizes.append((arch.parameters() - arch.embedding_parameters(), arch.outputs * arch.d_model))
    layers, head = np.array(sizes, float).T
    read = np.array([tokens * PER_TOKEN[choices["vocab_size"]] for _, choices, tokens, _ in points])
    loss = np.array([one[3] for one in points])
    factor = np.exp([changed(choices, tokens) for _, choices, tokens, _ in points])
    weight = np.sqrt([LONG if name else 1.0 for name, *_ in points]) / loss
    fits: list[tuple[float, Law]] = []
    for repeats, a, b in itertools.product(REPEATS, *EXPONENTS):
        fresh = replace(START, repeats=repeats).fresh(read, BYTES)
        columns = np.column_stack([np.ones(len(loss)), layers**-a, head**-a, fresh**-b]) * factor[:, None]
        found = nnls(columns * weight[:, None], loss * weight)
        error = float((((columns @ found - loss) * weight) ** 2).sum())
        floor, size, top, text = (float(value) for value in found)
        law = Law(
            floor=floor, layers=size, head=top, text=text, size_exponent=a, text_exponent=b, repeats=repeats
        )  # fmt: skip
        fits.append((error, law))
    for repeats in REPEATS:
        error, law = min((one for one in fits if one[1].repeats == repeats), key=lambda one: one[0])
        told = {name: round(getattr(law, name), 3) for name in ("floor", "layers", "head", "text")}
        print(f"repeats {repeats:g}: error {error:.4f}, {json.dumps(told)}, {law.size_exponent}, {law.text_exponent}")
    said = START.loss(layers, head, START.fresh(read, BYTES)) * factor
    for (name, _, tokens, real), expected in zip(points, said, strict=True):
        if name:
            print(f"{name} after {tokens / 1e6:.2f} M tokens: {real:.4f}, START {expected:.4f}")


if __name__ == "__main__":
    main()
