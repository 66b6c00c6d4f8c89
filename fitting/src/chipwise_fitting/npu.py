"""Files on Qualcomm's NPUs: reads AI Hub's table, fits rates of classes of operators, and predicts left-out runs.

The amounts of work of the table's models (``data/npu_works.csv.gz``) were counted from exports of public architectures;
see ``docs/notes/validation.md``. Errors are logarithms with heavy tails, and each model in a number format has the same
weight, however many chips it ran on. A family is a line of architectures, such as all ResNets.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import conformal_half_width
from chipwise.errors import SpecError
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.npu_chips import Chip, chip_named
from chipwise.predict.graphs.npus import RUNTIMES
from chipwise.predict.graphs.taught import RESULTS, terms_by_results
from chipwise.predict.whole_runs.sums import Amount, Law
from chipwise_fitting.sums_fit import Design, Fit
from chipwise_fitting.table_runs import number, packed_rows, table_in

FILE = "phones.csv.gz"
WORKS = Path(__file__).parent / "data" / "npu_works.csv.gz"
SOURCE = "published runs of Qualcomm AI Hub (qai-hub-models 0.65.0, BSD-3-Clause)"
NEEDED = ("model", "component", "precision", "device", "runtime", "ms")
PRECISIONS = ("float", "w8a16", "w8a8")
NOISE = 0.1  # standard deviation of a model's logarithm
PER_MODEL = 4.0  # weight of a model in one number format, in runs
STEPS, REFINED = 30, 6  # steps of a fit, and of a fit without some runs that starts from the fit to all
DEVIATION = {  # standard deviations of terms, by levels
    "format": (1.0, 1.0),  # all rates of a unit in one number format
    "runtime": (0.2, 0.2),  # for a number format; for one kind of rate in a format
    "chip": (0.5, 0.25, 0.1),  # for all rates; for one kind of rate or one format; for one kind in one format
}
RATE_DEVIATION = {"": 1.5, "float": 0.15, "w8a16": 0.15, "w8a8": 0.5}
"""Standard deviations of the priors of rates. Key ``""``: of a rate's deviation from its nominal value. Other keys: of
a rate's further deviation in this number format, beyond the deviation that all rates of the unit share in the format.
Rates of products use 0.5 in every format; with 8-bit activations, all rates do.
"""
PRODUCTS = ("conv", "pointwise", "matmul", "product", "weights", "batched")
PARTS = 8  # parts of the families, each left out together with each chip
DRAWS = 8  # random draws of results for teaching, for each chip and format
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A model's work: ``amounts`` maps each number format to the amounts of work of each class."""

    family: str
    amounts: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuRun:
    """A row of the table whose model's work is known."""

    row_id: str
    model: str
    family: str
    precision: str
    runtime: str
    chip: Chip
    seconds: float
    amounts: dict[str, float]

    @property
    def setting(self) -> tuple[str, str, str, str]:
        """Model, format, runtime and chip; rows with the same setting count once."""
        return self.model, self.precision, self.runtime, self.chip.name


def works(path: Path = WORKS) -> dict[str, Work]:
    """Maps ``model`` or ``model|part``, in lower case, to its amounts of work."""
    found: dict[str, Work] = {}
    for row in csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())):
        own = found.setdefault(row["model"], Work(family=row["family"], amounts={}))
        own.amounts[row["precision"]] = json.loads(row["amounts"])
    return found


def name_of(model: str, component: str) -> tuple[str, str]:
    """Returns the names under which a row's work may be known: the part's name, and the whole model's name."""
    whole = model.removesuffix("_quantized")
    for line in ("opus_mt", "intern3_5_vl"):
        whole = line if whole.startswith(line) else whole
    return f"{whole}|{component.lower()}", whole


def read(path: Path) -> list[NpuRun]:
    """Reads the rows on NPUs, in the fit's formats and runtimes, of models whose work is known.

    Raises:
        SpecError: The table cannot be read, lacks a column, or has no such row.
    """
    known = works()
    found = list(_runs(packed_rows(path, NEEDED), known))
    if not found:
        raise SpecError("holds no run whose model's work is known", file=str(path))
    return found


def _runs(rows: Sequence[dict[str, str]], known: dict[str, Work]) -> Iterator[NpuRun]:
    for row in rows:
        milliseconds, runtime = number(row["ms"]), RUNTIMES.get(row["runtime"])
        name = next((name for name in name_of(row["model"], row["component"]) if name in known), None)
        if name is None or milliseconds is None or runtime is None or row.get("unit", "NPU") != "NPU":
            continue
        if row["precision"] in PRECISIONS:
            yield NpuRun(
                row_id=row.get("row_id", ""),
                model=name,
                family=known[name].family,
                precision=row["precision"],
                runtime=runtime,
                chip=chip_named(row["device"]),
                seconds=milliseconds / 1e3,
                amounts=known[name].amounts[row["precision"]],
            )


def law_of(run: NpuRun) -> Law:
    """Returns the summands of a run's time."""
    return tuple(
        Amount(
            amount * npu_law.NOMINAL_S[name],
            place,
            tuple((term, 1.0) for term in npu_law.terms_of(name, run.chip, run.runtime, run.precision)),
        )
        for place, (name, amount) in enumerate(run.amounts.items())
    )


def prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    if kind not in DEVIATION:
        product = bool(levels) and kind.startswith(PRODUCTS)
        return 0.0, RATE_DEVIATION["w8a8" if product else "".join(levels)]
    depth = len(levels) - (2 if kind == "runtime" else 1)
    return 0.0, DEVIATION[kind][depth]


class Fitted:
    """A fit to all runs, and fits that leave some out."""

    def __init__(self, runs: Sequence[NpuRun]) -> None:
        firsts: dict[tuple[str, str, str, str], NpuRun] = {}
        for run in runs:
            firsts.setdefault(run.setting, run)
        self.runs = list(firsts.values())  # one run of each setting, because devices with the same chip hardly differ
        counts = Counter((run.model, run.precision) for run in self.runs)
        self._weights = np.array([PER_MODEL / counts[run.model, run.precision] for run in self.runs])
        self._fit = Fit(prior=prior, noise=NOISE)
        self._held = Design.of([law_of(run) for run in self.runs], [run.seconds for run in self.runs])
        self.theta = self._fit.descend(self._held, self._weights, steps=STEPS)

    def terms(self, theta: Float64Array) -> dict[str, float]:
        """Returns the terms for chipwise to ship: rounded, and without those that are about zero."""
        pairs = zip(self._held.names, theta, strict=True)
        return {name: round(float(v), 3) for name, v in pairs if abs(v) >= 0.001}

    def without(self, left_out: Mask) -> Float64Array:
        """Returns the terms of a fit that leaves some runs out."""
        return self._fit.descend(self._held, self._weights * ~left_out, self.theta, steps=REFINED)

    def misses(self, theta: Float64Array) -> Float64Array:
        """Returns log(predicted / measured) of every run with the terms ``theta``."""
        return np.asarray(self._held.predicted(theta)[0] - self._held.measured)

    def left_out(self, kind: str) -> Float64Array:
        """Returns log(predicted / measured) of every run, by a fit that leaves out its ``family`` or its ``chip``."""
        groups = np.array([run.family if kind == "family" else run.chip.name for run in self.runs])
        missed = np.empty(len(self.runs))
        for group in sorted(set(groups)):
            out = groups == group
            missed[out] = self.misses(self.without(out))[out]
        return missed

    def after_results(self, *, seed: int = 0, parts: int = 0) -> tuple[Float64Array, list[int]]:
        """Errors on a chip that was left out of the fit and then taught from results of :data:`RESULTS` other models.

        Args:
            seed: Random seed of the draws of results.
            parts: Number of parts into which the families are divided. Each part is left out of the fit and of the
                results before its runs are predicted; 0 leaves no family out.

        Returns:
            log(predicted / measured), and the index of each value's run; a run occurs once for each draw of results in
            its number format. Models that are drawn as results are not predicted.
        """
        random = np.random.default_rng(seed)
        families = random.permutation(sorted({run.family for run in self.runs}))
        left_out = [set(part) for part in np.array_split(families, parts)] if parts else [set[str]()]
        missed: list[float] = []
        places: list[int] = []
        for chip in sorted({run.chip.name for run in self.runs}):
            for part in left_out:
                held = np.array([run.chip.name == chip or run.family in part for run in self.runs])
                terms = self.terms(self.without(held))
                for precision in PRECISIONS:
                    there = [
                        place
                        for place, run in enumerate(self.runs)
                        if run.chip.name == chip and run.precision == precision
                    ]
                    for place, error in self._after(there, part, terms, random):
                        missed.append(error)
                        places.append(place)
        return np.array(missed), places

    def _after(
        self, there: Sequence[int], part: Set[str], terms: Mapping[str, float], random: np.random.Generator
    ) -> Iterator[tuple[int, float]]:
        """Yields indices and errors of the runs ``there`` (of one chip and format), for each draw of results."""
        models = sorted({self.runs[place].model for place in there if self.runs[place].family not in part})
        if len(models) < 2 * RESULTS:
            return
        for _ in range(1 if part else DRAWS):
            chosen = set(random.permutation(models)[:RESULTS])
            given = [place for place in there if self.runs[place].model in chosen]
            firsts = {self.runs[place].model: place for place in random.permutation(given)}
            results = [_result(self.runs[place]) for place in firsts.values()]
            taught = terms_by_results(self.runs[there[0]].chip, results, terms)
            for place in there:
                run = self.runs[place]
                if run.family in part or not (part or run.model in chosen):
                    yield place, math.log(seconds_of(run, {**terms, **taught}) / run.seconds)


def _result(run: NpuRun) -> FileResult:
    return FileResult(
        model=run.model, amounts=run.amounts, runtime=run.runtime, precision=run.precision, seconds=run.seconds
    )


def seconds_of(run: NpuRun, terms: Mapping[str, float]) -> float:
    """Predicts the seconds of a run with these terms."""
    rates = npu_law.rates(terms, run.chip, run.runtime, run.precision)
    return sum(amount * rates[name] for name, amount in run.amounts.items())


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law's terms to the table and writes ``npu_law.json``.

    Raises:
        SpecError: The table holds no run of a model whose work is known.
    """
    fitted = Fitted(read(table_in(tables, FILE)))
    models = {run.model for run in fitted.runs}
    progress(f"{len(fitted.runs)} runs of {len(models)} models in {len({run.family for run in fitted.runs})} families")
    family, chip = fitted.left_out("family"), fitted.left_out("chip")
    widths = half_widths(fitted.runs, family, chip)
    for place, taught in taught_half_widths(fitted).items():  # teaching must never widen an interval
        alone = place.replace("taught", "chip")
        widths |= {place: taught, alone: max(widths[alone], taught)}
    found = {
        "terms": fitted.terms(fitted.theta),
        "halfwidths": widths,
        "chips": sorted({run.chip.name for run in fitted.runs}),
        "models": len(models),
        "source": f"{SOURCE}: {len(models)} models on {len({run.chip.name for run in fitted.runs})} chips",
    }
    text = json.dumps(found, indent=1) + "\n"
    (out / npu_law.DATA.name).write_text(text, encoding="utf-8")
    npu_law.law.cache_clear()
    return f"npu: {len(fitted.runs)} runs, {len(fitted.terms(fitted.theta))} terms"


def taught_half_widths(fitted: Fitted) -> dict[str, float]:
    """Half-widths that contain nine in ten errors for new families on new chips.

    The chips were taught with results of other families.
    """
    after, places = fitted.after_results(parts=PARTS)
    formats = np.array([fitted.runs[place].precision for place in places])
    return {
        f"taught|{precision}": round(conformal_half_width(after[formats == precision]), 3)
        for precision in PRECISIONS
        if np.any(formats == precision)
    }


def half_widths(runs: Sequence[NpuRun], family: Float64Array, chip: Float64Array) -> dict[str, float]:
    """Half-widths per number format that contain nine in ten errors: for new families, and for these on new chips."""
    found = {}
    for precision in PRECISIONS:
        own = np.array([run.precision == precision for run in runs])
        if not own.any():
            continue
        new = conformal_half_width(family[own])
        found[f"family|{precision}"] = round(new, 3)
        # the chip's own share: what leaving it out adds to the errors of the models' terms
        found[f"chip|{precision}"] = round(max(new, math.hypot(new, conformal_half_width((chip - family)[own]))), 3)
    return found
