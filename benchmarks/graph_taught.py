"""Errors of the law for ONNX files on a chip that nobody measured: by its data sheet, and after five measured files.

    python benchmarks/graph_taught.py benchmarks/graph-law-epyc-ort1.31.1-2026-11-26.csv [--write]
        [--times benchmarks/graph-times-epyc-zen3-ort1.31.1-2026-11-27.csv --device epyc-7763:1-core]

The table is that of ``graph_law.py``. Made-up chips are the measured core with other rates: each of a chip's factors is
drawn from a lognormal distribution, one for the whole, one for each kind of rate (FLOPs, bytes, calls) and one for each
class of work. A model's measured time is multiplied by what the factors change in the law's time, so that all that the
law misses stays. The "data sheet" is that of the measured core. ``--times`` is a table of ``graph_times.py`` from
another machine, and ``--device`` its data sheet: a real chip, whose models are those of the first table.

Families are left out in parts: those that are predicted are neither in the fit nor among the five files, which are
drawn from the rest. Intervals are checked on parts that their half-width has not seen. ``--write`` bundles the
half-width of taught chips.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.statistics import conformal_half_width
from chipwise.hardware import datasheet
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs.chips import speeds_of
from chipwise.predict.graphs.law import GraphLaw, Speeds, law
from chipwise.predict.graphs.taught import RESULTS, speeds_by_results
from graph_law import OUTPUT, Model, fit, names_of, read

PARTS = 8  # into which families are split
CHIPS = 40  # made-up chips
DRAWS = 1  # of five files on each chip and part
WHOLE, UNIT, CLASS = 0.5, 0.3, 0.45  # standard deviations of the logarithms of a chip's factors
PRECISION = "fp32"
Miss = tuple[int, float, float]
"""The part, and log(predicted / measured) by the data sheet and after five files."""


def works(model: Model) -> dict[str, float]:
    """Amounts of work of a model, with their number formats."""
    return {f"{'int8' if name.startswith('int8') else PRECISION}|{name}": each for name, each in model.amounts.items()}


def seconds(fitted: GraphLaw, model: Model, speeds: Speeds) -> float:
    """The law's time of a pass."""
    return sum(fitted.parts(works(model), speeds).values())


def made_up(models: Sequence[Model], random: np.random.Generator) -> dict[str, float]:
    """Seconds of each model on another chip."""
    whole, units = random.normal(0, WHOLE), {unit: random.normal(0, UNIT) for unit in ("flops", "bytes", "calls")}
    names = names_of(list(models))
    terms = {name: whole + units[name.rpartition(" ")[2]] + random.normal(0, CLASS) for name in names}
    found = {}
    for model in models:
        parts = law().parts(works(model), law().reference)
        scaled = sum(each * math.exp(terms[name.partition("|")[2]]) for name, each in parts.items())
        found[model.name] = model.seconds * scaled / sum(parts.values())
    return found


def misses(models: Sequence[Model], chips: Iterator[Mapping[str, float]], sheet: Speeds, draws: int) -> list[Miss]:
    """Errors on each chip, with its seconds by the names of the models that were measured there."""
    random, found = np.random.default_rng(0), []
    families = random.permutation(sorted({model.family for model in models}))
    laws: dict[int, GraphLaw] = {}
    for measured in chips:
        for part in range(PARTS):
            out = set(families[part::PARTS])
            rest = [model for model in models if model.family not in out]
            if part not in laws:
                names = names_of(rest)
                laws[part] = replace(law(), seconds=dict(zip(names, map(float, fit(rest, names)), strict=True)))
            known = [model for model in rest if model.name in measured]
            asked = [model for model in models if model.family in out and model.name in measured]
            for _ in range(draws):
                chosen = [known[place] for place in random.permutation(len(known))[:RESULTS]]
                results = [
                    FileResult(
                        model=each.name, amounts=works(each), runtime="onnxruntime", precision=PRECISION,
                        seconds=measured[each.name],
                    )
                    for each in chosen
                ]  # fmt: skip
                taught = speeds_by_results(laws[part], results, {PRECISION: sheet}, PRECISION)
                for model in asked:
                    before, after = (seconds(laws[part], model, speeds) for speeds in (sheet, taught))
                    true = measured[model.name]
                    found.append((part, math.log(before / true), math.log(after / true)))
    return found


def told(label: str, found: Sequence[Miss], halfwidth: float | None = None) -> float:
    """Prints the errors; the half-width that holds nine in ten after five files."""
    parts, before, after = (np.array(each) for each in zip(*found, strict=True))
    print(label)
    held = [np.mean(np.abs(before) <= law().unfitted_halfwidth), 0.0]
    by_part = defaultdict(float)
    for part in sorted(set(parts)):
        width = halfwidth or conformal_half_width(after[parts != part])
        by_part[part] = float(np.sum(np.abs(after[parts == part]) <= width))
    held[1] = sum(by_part.values()) / len(after)
    for name, missed, inside in (("data sheet", before, held[0]), ("after five files", after, held[1])):
        error = np.abs(np.expm1(missed))
        print(
            f"  {name}: n {len(missed)}, median {np.median(error):.1%}, nine in ten within "
            f"{np.quantile(error, 0.9):.0%}, {inside:.1%} inside the 90 % interval"
        )
    return conformal_half_width(after)


def main() -> None:
    """Prints the errors; writes the half-width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--times", type=Path, help="models timed on another machine")
    parser.add_argument("--device", help="the data sheet of that machine")
    parser.add_argument("--write", action="store_true", help="bundle the half-width of taught chips")
    asked = parser.parse_args()
    models, random = read(asked.table), np.random.default_rng(1)
    made = misses(models, (made_up(models, random) for _ in range(CHIPS)), law().reference, DRAWS)
    halfwidth = told(f"{CHIPS} made-up chips, families left out", made)
    print(f"half-width {halfwidth:.3f}: a factor of {math.exp(halfwidth):.2f} either way")
    if asked.times is not None:
        with asked.times.open(encoding="utf-8", newline="") as stream:
            times = {row["model"]: float(row["cpu_s"]) for row in csv.DictReader(stream)}
        sheet = speeds_of(datasheet.load(asked.device), PRECISION).speeds
        real = misses(models, iter([times]), sheet, 10 * DRAWS)
        told(f"{asked.device}, {len(times)} models, families left out", real, law().taught_halfwidth)
    if asked.write:
        bundled = json.loads(OUTPUT.read_text(encoding="utf-8")) | {"taught_halfwidth": round(halfwidth, 3)}
        OUTPUT.write_text(json.dumps(bundled, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    main()
