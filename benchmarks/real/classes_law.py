"""Fits the law with which a search for classifiers of images or spoken words begins (``training/tasks/one_pass.py``).

    python benchmarks/real/classes_law.py

Short trainings are those of ``images.csv`` and ``words.csv`` (up to 9 passes over the training images, 43 over the
clips) with an error rate below 0.4 and about the usual learning rate. Long ones are those of ``stems.csv`` and the
winners of ``live.csv``, of 7 to 720 passes; they weigh ``LONG`` times as much. Floor and value of data are fitted to
each task, and the value of size to both, by relative non-negative least squares, for each of a few exponents of size
and values of ``Law.repeats``. Operators change losses as ``training/laws/operators.py`` says. Prints the best fits for
both tasks and for each alone, and the long trainings as the law of today expects them.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from stems import DESIGNS, FILES, drawn

import resumable_rows
from chipwise.core.statistics import nnls
from chipwise.design.phases.training_pace import sizes_of
from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of
from chipwise.training.laws.operators import change_after
from chipwise.training.tasks.one_pass import CLASSES

HERE = Path(__file__).parent
BYTES = {"images": (43_276_800, 55_200), "words": (29_280_000, 3_660)}  # of the training data, and examples
RUNS = {"images": load_run("examples/vision.yaml"), "words": load_run("examples/speech.yaml")}
DESIGN = re.compile(
    r"p(?P<patch>\d+) (?P<stem>\w+) (?P<pooling>class token|mean) d(?P<width>\d+) L(?P<depth>\d+) "
    r"h(?P<heads>\d+)x(?P<size>\d+) (?P<kind>\w+):(?P<ffn>\d+)"
)
LONG = 10.0
SIZES, REPEATS = (0.1, 0.3, 0.6, 1.0, 1.25, 1.5, 2.0), (10.0, 15.0, 30.0, 60.0, 120.0, math.inf)


@dataclass(frozen=True, slots=True)
class Row:
    """One training run."""

    task: str
    parameters: int  # of the layers, with the stem
    data_bytes: float
    tokens: float
    error: float
    changed: float  # ln error rate, by the design's operators
    long: bool
    text: str


def row_of(task: str, choices: Mapping[str, Any], tokens: float, error: float, *, long: bool) -> Row:
    """A training run of the design with these choices."""
    spec = replace(RUNS[task].space, head_size=(choices["head_size"],))
    arch = design_of({"vocab_size": spec.vocab_size[0], **choices}, spec=spec, name="row").arch
    known = [
        values[str(choices[name])].loss
        for name, values in RUNS[task].operators.operators.items()
        if str(choices[name]) in values
    ]
    known.append(RUNS[task].operators.depths[min(2, choices["depth"])])
    passes = tokens / arch.max_tokens / BYTES[task][1]
    size, _ = sizes_of(arch)
    return Row(
        task, size, passes * BYTES[task][0], tokens, error,
        float(sum(change_after(one, tokens) for one in known)), long,
        f"{task} p{choices['patch']} {choices['stem']} d{choices['d_model']} L{choices['depth']} {passes:.0f} passes",
    )  # fmt: skip


def chosen_in(summary: str) -> dict[str, Any]:
    """Choices of the design that ``live.csv`` describes as ``summary``."""
    found = DESIGN.match(summary)
    assert found is not None, summary
    width, depth, heads, ffn, size = (int(found[name]) for name in ("width", "depth", "heads", "ffn", "size"))
    pooling = "mean" if found["pooling"] == "mean" else "first"
    choices = drawn((width, depth, heads, ffn), int(found["patch"]), found["stem"], pooling) | {"head_size": size}
    choices["layers"] = [{**layer, "ffn": found["kind"]} for layer in choices["layers"]]
    return choices


def rows() -> list[Row]:
    """All training runs."""
    found = []
    for task in BYTES:
        for one in resumable_rows.read(HERE / f"{task}.csv"):
            if 0.9 < json.loads(one["recipe"])["rate"] < 2.1 and float(one["loss"]) < 0.4:
                choices = json.loads(one["choices"])
                found.append(row_of(task, choices, float(one["tokens"]), float(one["loss"]), long=False))
    for one in resumable_rows.read(HERE / "stems.csv"):
        known = [design for name in FILES if FILES[name] == FILES[one["task"]] for design in DESIGNS[name]]
        choices = next(
            drawn(*design)
            for design in known
            if [*map(str, (*design[0][:2], *design[1:]))]
            == [one[name] for name in ("width", "layers", "patch", "stem", "pooling")]
        )
        found.append(row_of(one["task"], choices, float(one["tokens"]), float(one["validation_error"]), long=True))
    for one in resumable_rows.read(HERE / "live.csv"):
        if one["task"] in BYTES:
            choices = chosen_in(one["design"])
            found.append(row_of(one["task"], choices, float(one["tokens"]), float(one["validation_loss"]), long=True))
    return found


def fits(found: Sequence[Row]) -> list[tuple[float, float, float, str]]:
    """Error of each exponent of size and value of ``repeats``, with the fitted terms, best first."""
    tasks = sorted({row.task for row in found})
    size = np.array([row.parameters for row in found], float)
    target = np.array([max(row.error, 1e-3) / math.exp(row.changed) for row in found])
    weight = np.array([LONG if row.long else 1.0 for row in found]) ** 0.5 / target
    within = np.array([[row.task == task for task in tasks] for row in found], float)
    tried = []
    for exponent in SIZES:
        for repeats in REPEATS:
            law = replace(CLASSES, repeats=repeats)
            fresh = np.array([float(law.fresh(row.data_bytes, BYTES[row.task][0])) for row in found])
            text = law.text * fresh**-law.text_exponent
            columns = np.column_stack([(size / 1e5) ** -exponent, within, within * text[:, None]])
            terms = nnls(columns * weight[:, None], target * weight)
            off = np.log(np.maximum(columns @ terms, 1e-4) / target)
            error = math.sqrt(float((off**2 * (weight * target) ** 2).sum() / ((weight * target) ** 2).sum()))
            held = " ".join(f"{term:.4f}" for term in terms)
            tried.append((error, exponent, repeats, held))
    return sorted(tried)


def main() -> None:
    """Prints the best fits, and the long trainings by the law of today."""
    found = rows()
    for name in ("", *BYTES):
        own = [row for row in found if row.task.startswith(name)]
        print(f"{name or 'both tasks'}: {len(own)} training runs, {sum(row.long for row in own)} long")
        print("  error, exponent, repeats; size at 1e5 parameters, floors, factors of data")
        for error, exponent, repeats, held in fits(own)[:6]:
            print(f"  {error:.4f} {exponent:4.2f} {repeats:5.0f}; {held}")
    for row in (row for row in found if row.long):
        law = RUNS[row.task].task_settings.law
        fresh = law.fresh(row.data_bytes, BYTES[row.task][0])
        expected = float(law.loss(row.parameters, 1.0, fresh)) * math.exp(row.changed)
        print(f"{row.text}: {row.parameters} parameters, {row.error:.4f}, {expected:.4f} by the law")


if __name__ == "__main__":
    main()
