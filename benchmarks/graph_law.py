"""Fits the law for graphs of users to measured models, and says how far off it is on families that it has not seen.

    python benchmarks/graph_law.py graph-law-epyc-ort1.31.1-2026-11-26.csv --room ROOM   # writes the table
    python benchmarks/graph_law.py benchmarks/graph-law-epyc-ort1.31.1-2026-11-26.csv [--write]

The table is written from ROOM: ``files``, the folder of ``graph_files.py``, and ``measured.csv`` and ``operators.csv``,
the tables of ``graph_times.py``.

A row of the table is a whole model (class "pass", seconds of one thread) or the profiled operators of one class in it,
with their amounts of work (``predict.graphs.law``). A fit is non-negative least squares on relative errors, robust
against outliers; each family of models is predicted by a fit without it. The rival is a roofline with two constants,
fitted to the same models. Half of the families, drawn many times, give the interval of the other half. ``--write``
bundles the constants.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from chipwise.model.graphs.graph import Graph
from chipwise.model.graphs.read import read_graph
from chipwise.predict.graphs.law import DATA, amounts_of, law, works_of
from graph_files import models as files_of
from provenance import stamp

OUTPUT = Path(__file__).parents[1] / "src/chipwise/predict/data" / DATA.name
CONTROL = ("If", "Loop", "Scan")
PROFILED_S = 3e-6  # most that the profiler adds to a node
LEAST = 0.003  # share of a model's time below which a class is left out
CLASS_WEIGHT = 0.3  # of the profiled operators of a class, beside its model's time
ROBUST = 0.03  # relative error above which a row's weight falls
ROUNDS = 6
RIDGE = 0.01  # pull of a constant to its plain guess
SHARE = 0.9  # of the interval
UNFITTED = 3.0  # factor either way for a chip that is known by its data sheet alone
HARD = {
    "LSTM": ("recurrent",),
    "Resize": ("resize",),
    "LayerNorm": ("norm",),
    "narrow convolutions": ("depthwise conv", "grouped conv"),
}
# Speeds of the core of the fit by deploy.graphs.probe; int8 with VNNI has four times the multiply-adds of fp32
REFERENCE = {"flops_per_s": {"fp32": 233e9, "int8": 932e9}, "bytes_per_s": 45.5e9, "call_s": 2.45e-7}


@dataclass
class Model:
    """A measured model."""

    name: str
    family: str
    seconds: float = 0.0
    flops: float = 0.0
    moved: float = 0.0
    amounts: dict[str, float] = field(default_factory=dict)
    classes: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)  # seconds and amounts


def gather(room: Path, out: Path) -> None:
    """Writes the table from files, ``measured.csv`` and ``operators.csv`` in ``room``."""
    csv.field_size_limit(2**31 - 1)
    with (room / "measured.csv").open(encoding="utf-8") as stream:
        times = {row["model"]: row for row in csv.DictReader(stream)}
    profiles: dict[str, list[dict[str, str]]] = defaultdict(list)
    with (room / "operators.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["op_type"] not in CONTROL:  # the nodes inside are listed themselves
                profiles[row["model"]].append(row)
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("model", "family", "class", "seconds", "flops", "bytes", "amounts"))
        for model in sorted(files_of(room / "files"), key=lambda model: model.name):
            if model.name not in times:
                continue
            graph = read_graph(model.path, model.shapes, model.values)
            seconds = float(times[model.name]["cpu_s"])
            moved = sum(op.bytes * op.runs for op in graph.ops)
            head = (model.name, model.family)
            writer.writerow((*head, "pass", f"{seconds:.5g}", graph.flops, moved, _told(_sums(works_of(graph.ops)))))
            for kind, own, amounts in _classes(graph, seconds, profiles[model.name]):
                writer.writerow((*head, kind, f"{own:.5g}", "", "", _told(amounts)))
    stamp(out)


def _classes(graph: Graph, seconds: float, profile: list[dict[str, str]]) -> Iterator[tuple[str, float, Counter[str]]]:
    """Seconds and amounts of each class, with what the profiler adds to each node taken off."""
    by_name = {op.name: op for op in graph.ops if op.flops is not None}
    by_name |= {op.output: op for op in graph.ops if op.flops is not None}
    calls = [max(1, round(float(row["calls"]))) for row in profile]
    raw = [float(row["least_us"]) * 1e-6 * count for row, count in zip(profile, calls, strict=True)]
    extra = min(max(0.0, (sum(raw) - seconds) / max(1, sum(calls))), PROFILED_S)
    spent: dict[str, float] = defaultdict(float)
    amounts: dict[str, Counter[str]] = defaultdict(Counter)
    for row, count, each in zip(profile, calls, raw, strict=True):
        node = row["node"]
        found = [name for name in (node, re.sub(r"_nchwc(_token_\d+)?$", "", node), row["graph_op"]) if name in by_name]
        kind = by_name[found[0]].kind if found else "layout" if row["op_type"].startswith("Reorder") else "other"
        spent[kind] += max(each - extra * count, each / 10)
        if found:
            amounts[kind].update(amounts_of(by_name[found[0]]))
    whole = sum(spent.values())
    for kind, own in sorted(spent.items()):
        if own > LEAST * whole:
            yield kind, own * seconds / whole, amounts[kind]


def _sums(works: Mapping[str, float]) -> Counter[str]:
    """Amounts over all number formats."""
    found: Counter[str] = Counter()
    for key, amount in works.items():
        found[key.partition("|")[2]] += amount
    return found


def _told(amounts: Counter[str]) -> str:
    return json.dumps({name: float(f"{amount:.6g}") for name, amount in amounts.items() if amount})


def read(path: Path) -> list[Model]:
    """The models of a table."""
    found: dict[str, Model] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            model = found.setdefault(row["model"], Model(row["model"], row["family"]))
            seconds, amounts = float(row["seconds"]), json.loads(row["amounts"])
            if row["class"] == "pass":
                model.seconds, model.amounts = seconds, amounts
                model.flops, model.moved = float(row["flops"]), float(row["bytes"])
            else:
                model.classes[row["class"]] = (seconds, amounts)
    return list(found.values())


def names_of(models: list[Model]) -> list[str]:
    """Names of all amounts."""
    return sorted({name for model in models for name in model.amounts})


def system(models: list[Model], names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of relative amounts, and their weights: a row times the constants should be its weight."""
    rows, weights = [], []
    for model in models:
        rows.append([model.amounts.get(name, 0) / model.seconds for name in names])
        weights.append(1.0)
        profiled = sum(seconds for seconds, _ in model.classes.values())
        for seconds, amounts in model.classes.values():
            weight = CLASS_WEIGHT * math.sqrt(seconds / profiled)
            own = seconds * model.seconds / profiled
            rows.append([weight * amounts.get(name, 0) / own for name in names])
            weights.append(weight)
    return np.array(rows), np.array(weights)


def prior(name: str) -> float:
    """A plain guess of a constant, for work that the models of a fit lack."""
    unit = name.rpartition(" ")[2]
    if unit == "flops":
        return (100 if "values" in name else 3) / REFERENCE["flops_per_s"]["fp32"]
    return 1 / REFERENCE["bytes_per_s"] if unit == "bytes" else 1e-6 / (10 if "view" in name else 1)


def fit(models: list[Model], names: list[str]) -> np.ndarray:
    """Seconds for each unit of the amounts ``names``."""
    rows, wanted = system(models, names)
    guess = np.array([prior(name) for name in names])
    rows = rows * guess
    robust = np.ones(len(wanted))
    for _ in range(ROUNDS):
        q, r = np.linalg.qr(np.vstack([rows * robust[:, None], RIDGE * np.eye(len(names))]))
        found, _ = nnls(
            r, q.T @ np.concatenate([wanted * robust, np.full(len(names), RIDGE)]), maxiter=100 * len(names)
        )
        robust = 1 / np.sqrt(np.maximum(np.abs(rows @ found - wanted), ROBUST))
    return found * guess


def roofline(models: list[Model]) -> tuple[float, float]:
    """FLOP/s and bytes/s of the two-constant roofline with the least median error."""
    flops, moved = (np.array([getattr(model, name) for model in models]) for name in ("flops", "moved"))
    seconds = np.array([model.seconds for model in models])
    best = (math.inf, 0.0, 0.0)
    for peak in np.geomspace(3e10, 4e11, 60):
        for rate in np.geomspace(1e9, 3e11, 60):
            error = float(np.median(np.abs(np.maximum(flops / peak, moved / rate) / seconds - 1)))
            best = min(best, (error, float(peak), float(rate)))
    return best[1:]


def value(amounts: dict[str, float], names: list[str], constants: np.ndarray) -> float:
    """Seconds of amounts of work."""
    return float(sum(amounts.get(name, 0) * each for name, each in zip(names, constants, strict=True)))


def left_out(models: list[Model]) -> tuple[dict[str, float], dict[str, float], dict[str, list[float]]]:
    """Predicted seconds of each model by a fit without its family, by the rival, and errors by class of operators."""
    names = names_of(models)
    predicted, rival, classes = {}, {}, defaultdict(list)
    for family in sorted({model.family for model in models}):
        rest = [model for model in models if model.family != family]
        constants, (peak, rate) = fit(rest, names), roofline(rest)
        for model in models:
            if model.family != family:
                continue
            predicted[model.name] = value(model.amounts, names, constants)
            rival[model.name] = max(model.flops / peak, model.moved / rate)
            profiled = sum(seconds for seconds, _ in model.classes.values())
            for name, (seconds, amounts) in model.classes.items():
                own = seconds * model.seconds / profiled
                classes[name].append(value(amounts, names, constants) / own - 1)
    return predicted, rival, classes


def halfwidth(errors: np.ndarray) -> float:
    """Log half-width that holds ``SHARE`` of ``errors``, with the correction for their number."""
    level = min(1.0, SHARE * (1 + 1 / len(errors)))
    return float(np.quantile(np.abs(errors), level))


def coverage(models: list[Model], errors: dict[str, float], draws: int = 200) -> list[float]:
    """Shares of one half of the families inside the interval of the other half, for random halves."""
    families = sorted({model.family for model in models})
    random, found = np.random.default_rng(0), []
    for _ in range(draws):
        known = set(random.permutation(families)[: len(families) // 2])
        sides = [[errors[m.name] for m in models if (m.family in known) == side] for side in (True, False)]
        found.append(float(np.mean(np.abs(sides[1]) <= halfwidth(np.array(sides[0])))))
    return found


def main() -> None:
    """Prints the errors; writes the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--room", type=Path, help="write the table from the files and times in this folder")
    parser.add_argument("--write", action="store_true", help="bundle the constants")
    asked = parser.parse_args()
    if asked.room is not None:
        gather(asked.room, asked.table)
    models = read(asked.table)
    predicted, rival, classes = left_out(models)
    families = {model.family for model in models}
    print(f"{len(models)} models of {len(families)} families, each predicted without its family")
    for label, guess in (("law by class", predicted), ("two-constant roofline", rival)):
        error = np.array([abs(guess[model.name] / model.seconds - 1) for model in models])
        print(
            f"{label}: median {np.median(error):.1%}, nine in ten within {np.quantile(error, 0.9):.1%}, "
            f"{np.mean(error <= 0.3):.1%} within 30 %"
        )
    logs = {model.name: math.log(predicted[model.name] / model.seconds) for model in models}
    inside = coverage(models, logs)
    factor = math.exp(halfwidth(np.array(list(logs.values()))))
    print(f"interval: x{factor:.2f}; holds {np.mean(inside):.1%} of the families left out")
    medians = {}
    for name, errors in sorted(classes.items()):
        medians[name] = float(np.median(np.abs(errors)))
        print(f"  {name}: median {medians[name]:.1%} of {len(errors)} models, bias {np.median(errors):+.1%}")
    for name, kinds in HARD.items():
        errors = np.array([each for kind in kinds for each in classes.get(kind, [])])
        print(f"  {name}: median {np.median(np.abs(errors)):.1%}" if len(errors) else f"  {name}: none")
    for model in sorted(models, key=lambda model: -abs(logs[model.name]))[:15]:
        shares = sorted(((seconds, name) for name, (seconds, _) in model.classes.items()), reverse=True)[:3]
        off = math.expm1(logs[model.name])
        print(f"  {model.name} ({model.family}): {model.seconds * 1e3:.3g} ms, {off:+.0%}, {shares}")
    if asked.write:
        names = names_of(models)
        constants = {name: float(f"{each:.4g}") for name, each in zip(names, fit(models, names), strict=True) if each}
        told = {
            "seconds": constants,
            "reference": REFERENCE,
            "halfwidth": round(math.log(factor), 3),
            "taught_halfwidth": law().taught_halfwidth,  # by graph_taught.py
            "unfitted_halfwidth": round(math.log(UNFITTED), 3),
            "classes": {name: round(each, 3) for name, each in medians.items()},
            "source": f"{len(models)} models on one core of an AMD EPYC (Zen 5), ONNX Runtime 1.31.1, 2026-11-26",
        }
        OUTPUT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    main()
