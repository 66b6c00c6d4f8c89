"""Fits the law of texts that a search begins with (``training/laws/scaling.py``, ``START``) to real trainings.

    python benchmarks/real/text_law.py

Short trainings are those of ``text.csv`` (0.4 passes over the text, differences of recipe removed), long ones those of
``convolutions.csv`` (1 to 1.7 passes) and ``expert.csv`` (5.7 to 11 passes), which weigh ``LONG`` times as much, since
a search's final training is as long. Floor and coefficients are fitted for each of a few exponents and values of
``Law.repeats`` by relative non-negative least squares; convolutions change losses as ``training/laws/operators.py``
says. Prints the best fit for each value of ``repeats``; values of 4 to 5 fit best, the error of others is up to twice
as large. Then prints, for the law of today, each long training and the means of the relative errors of models with
equally many layers, which are ``OperatorPrior.depths``.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
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
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.operators import TEXT, change_after
from chipwise.training.laws.scaling import START, Law

HERE = Path(__file__).parent
BYTES = 4_879_467  # of the training text of clinic
PER_TOKEN = {8192: 4.643, 4096: 3.996, 2048: 3.315, 1024: 2.671}  # bytes, of that text, by vocabulary
DESIGN = re.compile(
    r"d(?P<width>\d+) L(?P<depth>\d+)(?: conv:(?P<conv>\w+))? h(?P<heads>\d+)/(?P<kv_heads>\d+) "
    r"(?P<kind>\w+):(?P<ffn>\d+) v(?P<vocab>\d+) (?P<tied>tied|untied)"
)
FITTED = ("expert.csv",)
JUDGED = (*FITTED, "expert-xeon.csv", "expert-xeon-2026-11-30.csv", "expert-zen3.csv", "expert-zen5.csv")
LENGTHS = {2.5e6: "below 2.5 M tokens", 5e6: "2.5 to 5 M tokens", 12e6: "5 to 12 M tokens"}
LONG = 30.0
EXPONENTS, REPEATS = ((0.2, 0.3, 0.4, 0.5), (0.25, 0.3, 0.34, 0.4, 0.5)), (2.0, 3.0, 4.0, 5.0, 8.0, math.inf)


def design_in(text: str) -> dict[str, Any]:
    """Choices of the design that a table describes as ``text``."""
    found = DESIGN.match(text)
    assert found is not None, text
    width, heads = int(found["width"]), (int(found["heads"]), int(found["kv_heads"]))
    head = 64 if (width, heads[0]) == (128, 2) else 32  # two heads of 64 are those of the reference design
    return drawn(
        width, int(found["depth"]), heads, int(found["ffn"]), int(found["vocab"]), found["conv"] or "none",
        tied=found["tied"] == "tied", head=head, kind=found["kind"],
    )  # fmt: skip


def long_trainings(tables: Sequence[str]) -> list[tuple[str, Mapping[str, Any], float, float]]:
    """Name, choices, tokens and validation loss of each long training of ``convolutions.csv`` and ``tables``."""
    found = []
    with (HERE / "convolutions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            width, layers, ffn = (int(row[name]) for name in ("width", "layers", "ffn_width"))
            choices = drawn(width, layers, (4, 4), ffn, int(row["vocab_size"]), row["conv"], tied=True)
            loss = float(row["validation_bits_per_byte"])
            found.append((f"d{width} L{layers} conv:{row['conv']}", choices, float(row["tokens"]), loss))
    for table in tables:
        with (HERE / table).open(newline="") as file:
            for row in csv.DictReader(file):
                one = row["design"].rpartition(" ")[0], design_in(row["design"]), float(row["tokens"])
                if (trained := (*one, float(row["validation_bits_per_byte"]))) not in found:
                    found.append(trained)  # the formats of one training are rows of their own
    shape = DRAWN["small-conv"]  # 4,000 steps, of docs/notes/training.md
    return [*found, ("the same, 7 passes", shape, 8.192e6, 1.074)]


def shares_keys(choices: Mapping[str, Any]) -> bool:
    """Whether several query heads share a key head."""
    return any(layer["heads"] > layer["kv_heads"] for layer in choices["layers"])


def grouped(choices: Mapping[str, Any], tokens: float) -> float:
    """Change of the ln loss by shared key heads."""
    known = TEXT.grouped
    return float(change_after(known.loss, tokens)) if known is not None and shares_keys(choices) else 0.0


def changed(choices: Mapping[str, Any], tokens: float) -> float:
    """Change of the ln loss by convolutions and by shared key heads."""
    conv = TEXT.operators["conv"].get(choices.get("conv", "none"))
    change = 0.0 if conv is None else float(change_after(conv.shallow.get(choices["depth"], conv.loss), tokens))
    return change + grouped(choices, tokens)


def sizes_of(choices: Mapping[str, Any], space: SpaceSpec) -> tuple[float, float]:
    """Parameters of the layers, and of the head."""
    arch = design_of(choices, spec=replace(space, head_size=(choices["head_size"],)), name="point").arch
    return float(arch.parameters() - arch.embedding_parameters()), float(arch.outputs * arch.d_model)


def main() -> None:
    """Prints the fits."""
    space = load_run(HERE.parents[1] / "examples" / "clinic.yaml").space
    short = rows_of("text", "1")
    points = [
        ("", row["choices"], float(row["tokens"]), float(loss))
        for row, loss in zip(short, without_recipe(short), strict=True)
    ] + long_trainings(FITTED)
    layers, head = np.array([sizes_of(choices, space) for _, choices, _, _ in points]).T
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
    by_depth: dict[tuple[int, str], list[float]] = {}
    by_keys: dict[bool, list[float]] = {}
    for name, choices, tokens, real in long_trainings(JUDGED):
        n, h = sizes_of(choices, space)
        fresh = START.fresh(tokens * PER_TOKEN[choices["vocab_size"]], BYTES)
        expected = float(START.loss(n, h, fresh)) * math.exp(changed(choices, tokens))
        more = math.log(real / expected)
        print(f"{name} after {tokens / 1e6:.2f} M tokens: {real:.4f}, START {expected:.4f}, {more:+.1%}")
        length = next((told for most, told in LENGTHS.items() if tokens < most), "more")
        by_depth.setdefault((choices["depth"], length), []).append(more)
        if choices["depth"] > 1 and tokens > 5e6:
            left = more - float(change_after(TEXT.depths[choices["depth"]], tokens))
            by_keys.setdefault(shares_keys(choices), []).append(left + grouped(choices, tokens))
    for (depth, length), found in sorted(by_depth.items()):
        print(f"{depth} layers, {length}: {np.mean(found):+.3f} (ln), {len(found)} training runs")
    for shared, found in by_keys.items():
        error = np.std(found, ddof=1) / math.sqrt(len(found))
        told = "query heads that share key heads" if shared else "a key head for each query head"
        print(f"{told}, from 5 M tokens: {np.mean(found):+.4f} ± {error:.4f} (ln), {len(found)} training runs")


if __name__ == "__main__":
    main()
