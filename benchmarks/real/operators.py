"""Fits what an operator changes at equal size, tokens and recipe, from the tables of real trainings.

    python benchmarks/real/operators.py

ln loss is regressed on sizes, recipe and operators, by ridge regression whose prior is that operators change nothing
(standard deviation ``BELIEF``). Prints the change of each operator with its standard error for each length, the
standard deviation of what is left, and Kendall's tau between expected and real losses of one task from operators that
were fitted to the others. ``training/laws/operators.py`` holds the result for whole trainings of text.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

FOLDER = Path(__file__).parent
TASKS = ("text", "images", "words", "drawing")
BELIEF = 0.03  # standard deviation of what operators change before anything is known
UNSTABLE = (2.0, 0.25)  # rate and batch at which losses rise again at the end
SHARES = ("0.1111", "0.3333", "1")
Features = dict[str, float]


def rows_of(task: str, share: str) -> list[dict[str, Any]]:
    """Trainings of a table with one length and stable recipe; seeds of one design are separate rows."""
    with (FOLDER / f"{task}.csv").open(newline="") as file:
        rows = [
            {**row, "choices": json.loads(row["choices"]), "recipe": json.loads(row["recipe"])}
            for row in csv.DictReader(file)
        ]
    kept = [row for row in rows if row["share"] == share]
    return [row for row in kept if (row["recipe"]["rate"], row["recipe"]["batch"]) != UNSTABLE]


def operators_of(choices: Mapping[str, Any]) -> Features:
    """Which operators a design has; zero is a design without any of them, with GELU."""
    layer = choices["layers"][0]
    found = {f"ffn={name}": float(layer["ffn"] == name) for name in ("relu", "silu", "geglu", "swiglu")}
    found |= {f"conv={name}": float(choices.get("conv") == name) for name in ("attention", "both")}
    found |= {"sharing=pairs": float(choices["sharing"] == "pairs")}
    found |= {"stem=conv": float(str(choices.get("stem", "")).startswith("conv"))}
    return found


def rest_of(row: Mapping[str, Any]) -> Features:
    """Sizes and recipe of a training."""
    choices, recipe = row["choices"], row["recipe"]
    layer = choices["layers"][0]
    rate, batch = math.log2(recipe["rate"]), math.log2(recipe["batch"])
    found = {
        "1": 1.0, "d": math.log(choices["d_model"] / 128), "depth": math.log(choices["depth"] / 2),
        "ffn": math.log(layer["ffn_width"] / choices["d_model"]), "heads": math.log(layer["heads"]),
        "tied": float(choices["tie_embeddings"]), "rate": rate, "rate2": rate**2, "batch": batch, "batch2": batch**2,
        "both": rate * batch, "decay": recipe["decay_share"], "weight_decay": recipe["weight_decay"],
    }  # fmt: skip
    if "patch" in choices:
        return found | {"patch": math.log(choices["patch"]), "steps": math.log(choices.get("steps", 1))}
    return found | {"vocab": math.log2(choices["vocab_size"] / 4096)}


def fit(tasks: Sequence[str], share: str) -> tuple[dict[str, tuple[float, float]], float]:
    """Each operator's change of ln loss with its standard error, and the standard deviation of what is left.

    Sizes and recipe have coefficients for each task, operators have the same for all.
    """
    rows = [(task, row) for task in tasks for row in rows_of(task, share)]
    names = list(operators_of(rows[0][1]["choices"]))
    x = [list(operators_of(row["choices"]).values()) for _, row in rows]
    y = np.array([math.log(float(row["loss"])) for _, row in rows])
    operators, blocks = np.array(x), []
    for task in tasks:
        own = [rest_of(row) if each == task else {} for each, row in rows]
        columns = sorted({name for one in own for name in one})
        blocks.append(np.array([[one.get(name, 0.0) for name in columns] for one in own]))
    design = np.column_stack([operators, *blocks])
    design = design[:, (design != 0).any(axis=0) | (np.arange(design.shape[1]) < len(names))]
    sd = 0.03
    for _ in range(20):  # the weight of the prior depends on what is left
        ridge = np.zeros(design.shape[1])
        ridge[: len(names)] = (sd / BELIEF) ** 2
        inverse = np.linalg.pinv(design.T @ design + np.diag(ridge))
        found = inverse @ (design.T @ y)
        sd = float(np.sqrt(((y - design @ found) ** 2).sum() / (len(y) - np.trace(inverse @ design.T @ design))))
    errors = sd * np.sqrt(np.diag(inverse))
    return {name: (float(found[i]), float(errors[i])) for i, name in enumerate(names)}, sd


def left_out(task: str, share: str) -> float:
    """Kendall's tau of what operators, fitted to the other tasks, say and what sizes and recipe leave of this one."""
    changes, _ = fit([other for other in TASKS if other != task], share)
    rows = rows_of(task, share)
    own = [rest_of(row) for row in rows]
    x = np.array([list(one.values()) for one in own])
    y = np.array([math.log(float(row["loss"])) for row in rows])
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    said = [sum(changes[name][0] * value for name, value in operators_of(row["choices"]).items()) for row in rows]
    return float(kendalltau(said, left).statistic)


def main() -> None:
    """Prints all fits."""
    for tasks in (("text",), TASKS):
        for share in SHARES:
            changes, sd = fit(tasks, share)
            print(f"{' '.join(tasks)}, {float(share):.2f} of a training: {sd:.1%} left")
            for name, (value, error) in changes.items():
                if error < BELIEF * 0.999:
                    print(f"  {name:14} {value:+.1%} ± {error:.1%}")
    for task in TASKS:
        print(f"{task} left out: tau {left_out(task, '1'):+.2f}")


if __name__ == "__main__":
    main()
