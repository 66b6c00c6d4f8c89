"""Errors of the law for ONNX files on phones' NPUs, and of the law for image models in PyTorch, on what was left out.

    python benchmarks/npu_law.py --truth ATLAS [--write] [--only npu|timm]

ATLAS is a folder with ``phones.csv.gz`` (Qualcomm AI Hub's published runs) and ``vision.csv.gz`` (timm's). Works of the
phones' models are in ``fitting``. Printed for each number format: the median error with each
family of models left out, with each chip left out and taught by five other models, and what of the truth is inside the
90 % interval. Intervals are checked on families or chips that their half-width has not seen. ``--write`` bundles the
fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chipwise.core.statistics import conformal_half_width
from chipwise.predict.graphs import npu_law
from chipwise_fitting import npu, vision
from chipwise_fitting.sums_fit import Fit, folds
from chipwise_fitting.table_runs import packed_rows, table_in, with_laws

LINES = {"vit": ("vit", "deit", "deit3", "beitv2", "eva", "flexivit"), "swin": ("swinv2", "swinv2_cr")}
"""Families of timm's table that are one line of architectures."""


def told(label: str, missed: np.ndarray, inside: float | None = None) -> None:
    """Prints the errors of log(predicted / measured)."""
    error = np.abs(np.expm1(missed))
    held = "" if inside is None else f", {inside:.1%} inside the 90 % interval"
    print(
        f"  {label}: n {len(missed)}, median {np.median(error):.1%}, nine in ten within {np.quantile(error, 0.9):.0%}, "
        f"bias {np.expm1(np.median(missed)):+.0%}{held}"
    )


def inside(missed: np.ndarray, groups: Sequence[str], extra: np.ndarray | None = None) -> float:
    """Share inside an interval whose half-width comes from the other groups."""
    each, held = np.array(groups), np.zeros(len(missed), bool)
    for group in sorted(set(groups)):
        out = each == group
        width = conformal_half_width(missed[~out])
        if extra is not None:
            width = float(np.hypot(width, conformal_half_width(extra[~out])))
        held[out] = np.abs(missed[out]) <= width
    return float(held.mean())


def phones(truth: Path) -> None:
    """The phones' table."""
    fitted = npu.Fitted(npu.read(table_in(truth, npu.FILE)))
    runs = fitted.runs
    names = sorted({run.model for run in runs})
    print(f"phones: {len(runs)} runs of {len(names)} models in {len({run.family for run in runs})} families")
    family, chip = fitted.left_out("family"), fitted.left_out("chip")
    after, places = fitted.after_results()
    new, new_places = fitted.after_results(parts=npu.PARTS)
    for precision in npu.PRECISIONS:
        own = np.array([run.precision == precision for run in runs])
        families = [run.family for run in runs if run.precision == precision]
        chips = [run.chip.name for run in runs if run.precision == precision]
        told(f"{precision}, family left out", family[own], inside(family[own], families))
        told(f"{precision}, chip left out", chip[own], inside(chip[own], chips))
        there = [place for place in range(len(places)) if runs[places[place]].precision == precision]
        told(f"{precision}, chip left out, after five results", after[there])
        there = [place for place in range(len(new_places)) if runs[new_places[place]].precision == precision]
        families = [runs[new_places[place]].family for place in there]
        told(f"{precision}, chip and family left out, after five results", new[there], inside(new[there], families))


def timm(truth: Path) -> None:
    """The table of image models in PyTorch."""
    file = table_in(truth, vision.FILE)
    families = {row["row_id"]: row["family"] for row in packed_rows(file, vision.NEEDED)}
    line = {name: key for key, names in LINES.items() for name in names}
    runs = with_laws(vision.read(file), file)
    own = [families[run.row_id] for run in runs]
    lines = [line.get(each, "vit" if each.startswith("vit-") else each) for each in own]
    fit = Fit(prior=vision.prior, noise=vision.NOISE)
    found = folds(fit, [run.law or () for run in runs], [run.measured for run in runs], {"family": own, "line": lines})
    print(f"timm: {len(runs)} runs of {len({run.model for run in runs})} models")
    for kind, groups in (("family", own), ("line", lines)):
        told(f"{kind} left out ({len(set(groups))})", found.misses[kind], inside(found.misses[kind], groups))


def main() -> None:
    """Prints the errors; writes the law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--only", choices=("npu", "timm"))
    parser.add_argument("--write", action="store_true", help="bundle the law for NPUs")
    asked = parser.parse_args()
    if asked.only != "timm":
        phones(asked.truth)
    if asked.only != "npu":
        timm(asked.truth)
    if asked.write:
        print(npu.fit(asked.truth, npu_law.DATA.parent, progress=print))


if __name__ == "__main__":
    main()
