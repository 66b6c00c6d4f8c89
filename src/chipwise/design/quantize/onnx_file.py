"""Finds the formats that make an ONNX file fastest on this machine while the loss of quality stays within a limit.

1. Uniform recipes, which are files with one format for many products (operators with weights), are written, scored, and
   timed against the original.
2. For each product and each format that saves time, the loss with only this product in this format is measured.
3. The formats that save the most time within a budget for the sum of these losses are chosen exactly. Bisection finds
   the largest budget for which the measured loss of the whole file meets the limit.
4. Formats of single products are changed as long as that makes the file faster.
5. Tables of rows, such as embeddings, are stored in 8 bits if the limit allows it, which saves bytes but no time.
6. The best files are timed against the original again, and scored on data that was not used for any choice.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest, plain
from chipwise.core.extras import require
from chipwise.core.files import build, check_output, publish
from chipwise.core.results import Result
from chipwise.deploy.graphs.inputs import Samples, check_samples, samples_of, with_shapes
from chipwise.deploy.graphs.modules import Inputs, Module, on_disk
from chipwise.deploy.graphs.reading import external_files, inputs_of
from chipwise.deploy.kits.kits import sha256_of
from chipwise.deploy.measure.harness import check_threads
from chipwise.design.quantize.bench import Bench, Setup
from chipwise.design.quantize.divergence import Judge, Loss, load_metric
from chipwise.design.quantize.node_choices import (
    OPERATORS,
    OTHERS,
    STATIC,
    TABLE,
    TABLE_FORMAT,
    Candidate,
    Formats,
    family,
    mixed,
    told,
    uniform,
)
from chipwise.errors import Infeasible, MeasurementError, SpecError

LEAST_SAMPLES = 8
CALIBRATED, SENSED, TIMED = 32, 24, 8  # samples for ranges, for losses of single products, and for timing
TRY_S, FINAL_S, ROUNDS = 1.0, 2.5, 5  # seconds of timing a pair while choosing, and at the end; rounds at the end
LEAST_WINS = 0.6  # share of pairs of passes that a faster file must win
NEARLY = 0.03  # files count as nearly as fast up to this difference, as a share of the original's time
FINALISTS = 3  # files that are timed in the rounds at the end
LEAST_GAIN = 0.005  # smaller savings, as shares of the original's time, count as noise
SLOWER = 1.05  # files that take this many times as long as the original are not judged
BISECTIONS = 7
REPEATABLE = 0.005  # the repeatability that is stated is never below this share


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A file that was tried: its time as a share of the original's, its loss on the data for choosing, and its size."""

    recipe: str
    uniform: bool
    ratio: float | None = None  # None if it was not timed
    loss: float | None = None
    upper: float | None = None  # upper bound of the loss, which must meet the limit
    size_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantisedFile(Result):
    """The fastest file within the loss limit, if any. Times are CPU time for one thread, and wall time for more."""

    source: str
    file: str | None  # None if no file beats the original
    formats: str
    limit: float
    unit: str  # what losses are measured in
    loss: float | None  # on data that was used for no choice
    upper: float | None  # upper bound on the data that was used for choosing
    ratio: float  # measured time as a share of the original's, the median over rounds
    ratio_low: float
    ratio_high: float
    repeatability: float  # largest deviation from 1 when the original is timed against itself, in as many rounds
    original_s: float
    original_bytes: int
    size_bytes: int
    choosing: int  # number of samples used for choosing
    scored: int  # number of samples used only for the final score
    rounds: int
    threads: int
    tried: tuple[Tried, ...]
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """The verdict in one line."""
        limit = f"{units.show(self.limit, 'share')} {self.unit}"
        if self.file is None:
            repeatable = units.show(self.repeatability, "share")
            return f"no quantised {self.source} within {limit} is faster than the original (repeatability {repeatable})"
        return f"{self.file}: {self.ratio:.3f} of the original's time, loss {self.loss:.4f} (limit {limit})"

    def rows(self) -> list[Mapping[str, object]]:
        """One row for each file that was tried."""
        return [plain(item) for item in self.tried]


def quantize(
    model: str | Path | Module,
    *,
    data: str | Path | Mapping[str, AnyArray],
    loss: str | float = "<= 1 %",
    metric: str | None = None,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    out: str | Path | None = None,
    threads: int = 1,
    minutes: float = 10.0,
    seed: int = 0,
    resume: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> QuantisedFile:
    """Implements :func:`chipwise.quantize` for ONNX files; half of the samples are for the final score."""
    for module in ("onnx", "onnxruntime", "scipy"):
        require(module)
    limit = parse_loss(loss)
    with on_disk(model, inputs=inputs, data=data, shapes=shapes, values=values) as model_file:
        source, file = model_file.path, model_file.data
        if file is None:
            raise SpecError("missing; give a .npz file, a folder of .npz files, or arrays by input name", field="data")
        target = Path(out if out is not None else f"{source.stem}.quantised.onnx")
        check_output(target, source=source)
        check_threads(threads)
        values, fixed = dict(model_file.values), dict(model_file.shapes)
        known = with_shapes(source, inputs_of(source), fixed)
        samples = samples_of(source, known, file, values, with_extra=metric is not None)
        check_samples(samples, LEAST_SAMPLES, file)
        judging = None if metric is None else load_metric(metric)
        order = [int(i) for i in np.random.default_rng(seed).permutation(len(samples.feeds))]
        half = len(order) // 2
        choosing, scoring = order[:half], order[half:]
        folder = target.with_name(f"{target.name}.state")
        setup: Setup = {
            "source": str(source.resolve()),
            "prepared": str(folder / "prepared.onnx"),
            "samples": str(folder / "samples.npz"),
            "calibrated": choosing[:CALIBRATED],
            "values": values,
            "shapes": {name: list(shape) for name, shape in fixed.items()},
            "threads": threads,
            "folder": str(folder),
        }
        scored_by = None if metric is None else [metric, sha256_of(Path(metric.rpartition(":")[0]))]
        seen = [sha256_of(source), hash_of(samples), scored_by]
        identity = digest([*seen, limit, values, setup["shapes"], threads, seed, minutes])
        with Bench(folder, identity, setup, samples, resume=resume) as bench:
            judge = Judge(bench.outputs(str(source), order), samples, judging)
            run = _Run(bench, judge, source, limit, choosing, minutes=minutes, on_progress=on_progress)
            found = run.final(run.choose(), scoring, target, threads=threads)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def hash_of(samples: Samples) -> str:
    """SHA-256 of the samples, in hexadecimal."""
    found = hashlib.sha256()
    for arrays in (*samples.feeds, samples.extra):
        for name, array in arrays.items():
            found.update(f"{name} {array.shape} {array.dtype}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def parse_loss(loss: str | float) -> float:
    """Parses the largest loss from a text such as ``<= 1 %``; returns it as a share.

    >>> parse_loss("<= 1 %")
    0.01

    Raises:
        SpecError: The text is not a share of at least 0.
    """
    found = units.parse_field(
        re.sub(r"^\s*(<=|<|≤)\s*", "", loss) if isinstance(loss, str) else loss, "share", "--loss"
    )
    if not 0 <= found < math.inf:
        raise SpecError(f"must be a share of at least 0, such as '<= 1 %', not {loss}", field="--loss")
    return found


class _Run:
    """Runs the steps of one run; the :class:`Bench` stores all results that take time."""

    def __init__(
        self,
        bench: Bench,
        judge: Judge,
        source: Path,
        limit: float,
        choosing: Sequence[int],
        *,
        minutes: float,
        on_progress: Callable[[str, int, int], None],
    ) -> None:
        self._bench, self._judge, self._source, self._limit = bench, judge, str(source), limit
        self._choosing, self._minutes, self._progress = list(choosing), minutes, on_progress
        self.products, self._note = bench.products()
        self.tried: dict[str, Tried] = {}
        self._formats: dict[str, Formats] = {}

    def choose(self) -> list[Formats]:
        """Runs steps 1 to 5; returns the formats of the best files within the limit, fastest first."""
        recipes = uniform(self.products)
        for i, (name, formats) in enumerate(recipes.items()):
            self._progress("uniform recipes", i, len(recipes))
            self._try(formats, name=name)
        candidates = self._sensitivities(recipes)
        self._bisect(candidates)
        self._change_single(candidates)
        return [self._smaller(key) for key in self._within()[:FINALISTS]]

    def _smaller(self, key: str) -> Formats:
        """A file's formats, with tables of rows in 8 bits if that meets the limit: this saves bytes, but no time."""
        formats, before = self._formats[key], self.tried[key].ratio or 1.0
        tables = {item.node: TABLE_FORMAT for item in self.products if item.operator == TABLE}
        if not tables or OTHERS in formats:
            return formats
        found = self._try({**formats, **tables})
        return {**formats, **tables} if self._keeps(found) and (found.ratio or 1.0) <= before + NEARLY else formats

    def _within(self) -> list[str]:
        """Keys of tried files that meet the limit and are faster than the original, fastest first."""
        kept = {key: each for key, each in self.tried.items() if self._keeps(each) and each.ratio and each.ratio < 1}
        return sorted(kept, key=lambda key: kept[key].ratio or 1.0)

    def _keeps(self, item: Tried) -> bool:
        return item.upper is not None and item.upper <= self._limit

    def _try(self, formats: Formats, *, name: str | None = None) -> Tried:
        """Writes and scores a file, and times it in alternation with the original."""
        key = digest(dict(formats))
        if key in self.tried:
            return self.tried[key]

        recipe = name or told(formats, self.products)
        try:
            found = self._bench.once(f"try {key}", partial(self._made, formats))
            self.tried[key] = build(Tried, {"recipe": recipe, "uniform": name is not None, **found}, field="tried")
        except MeasurementError as error:
            self.tried[key] = Tried(recipe=recipe, uniform=name is not None, error=str(error))
        self._formats[key] = formats
        return self.tried[key]

    def _made(self, formats: Formats) -> dict[str, float | None]:
        """Time, size and loss of a file; without the loss if the file is slower than the original."""
        file = self._bench.file(formats)
        ratio = self._bench.timed(self._source, file, self._choosing[:TIMED], TRY_S)["ratio"]
        found: dict[str, float | None] = {"ratio": ratio, "size_bytes": Path(file).stat().st_size}
        if ratio >= SLOWER:
            return found
        loss = self._judge.loss(self._bench.outputs(file, self._choosing))
        return found | {"loss": _finite(loss.value), "upper": _finite(loss.upper)}

    def _sensed(self, formats: Formats) -> dict[str, float | None]:
        """A file's loss for each output, in the form that is nearly additive over operators.

        It is computed on the first ``SENSED`` of the samples that are used for choosing formats.
        """
        file = self._bench.file(formats)
        found = self._judge.additive(self._bench.outputs(file, self._choosing[:SENSED]))
        return {name: _finite(x) for name, x in found.items()}

    def _timed_at_end(self, formats: Formats | None) -> Mapping[str, float]:
        """Times a file (None: the original) in alternation with the original, longer than when formats are chosen."""
        file = self._source if formats is None else self._bench.file(formats)
        return self._bench.timed(self._source, file, self._choosing[:TIMED], FINAL_S)

    def _sensitivities(self, recipes: Mapping[str, Formats]) -> dict[str, list[Candidate]]:
        """For each product, the formats that save time for its kind of product, with their losses.

        The loss of a format is measured with only this product in the format.
        """
        saving = self._paying(recipes)
        seconds = self._bench.once("shares", partial(self._bench.shares, self._choosing[0]))
        of_kind: dict[str, float] = {}
        for item in self.products:
            of_kind[item.operator] = of_kind.get(item.operator, 0.0) + seconds.get(item.node, 0.0)
        pairs = [(item, name) for item in self.products for kind, name in saving if kind == item.operator]
        found: dict[str, list[Candidate]] = {item.node: [] for item in self.products}
        for i, (item, name) in enumerate(pairs):
            self._progress("single products", i, len(pairs))
            try:
                sensed = self._bench.once(f"sense {item.node} {name}", partial(self._sensed, {item.node: name}))
            except MeasurementError:
                continue
            share = seconds.get(item.node, 0.0) / max(of_kind[item.operator], 1e-300)
            loss = {output: x for output, x in sensed.items() if x is not None}
            if len(loss) == len(sensed):
                found[item.node].append(Candidate(format=name, saved=share * saving[item.operator, name], loss=loss))
        return found

    def _paying(self, recipes: Mapping[str, Formats]) -> dict[tuple[str, str], float]:
        """Maps a kind of product and a format that saves time to the share of the original's time that is saved.

        A format is left out if another one is at least as fast and loses at most as much. Among formats that differ
        only in ranges or scales and are nearly equally fast, only the one with the least loss stays.
        """
        found: dict[tuple[str, str], float] = {}
        for kind in sorted({item.operator for item in self.products}):
            named = {name: recipes.get(f"{name}, {kind}") for name, able in OPERATORS.items() if kind in able}
            tried = {name: self.tried[digest(dict(each))] for name, each in named.items() if each is not None}
            paying = {
                name: (item.ratio, item.loss)
                for name, item in tried.items()
                if item.ratio is not None and item.loss is not None and item.ratio <= 1 - LEAST_GAIN
            }
            for name, (ratio, loss) in paying.items():
                rivals = [other for each, other in paying.items() if each != name]
                nearly = [other for each, other in paying.items() if each != name and each in family(name)]
                if any(faster <= ratio and better <= loss for faster, better in rivals):
                    continue
                if any(better < loss and faster <= ratio + NEARLY for faster, better in nearly):
                    continue
                found[kind, name] = 1 - ratio
        # a file can hold only one format of the static family: take the one that saves the most
        statics = sorted((pair for pair in found if pair[1] in STATIC), key=lambda pair: -found[pair])
        return {pair: gain for pair, gain in found.items() if pair[1] not in STATIC or pair[1] == statics[0][1]}

    def _bisect(self, candidates: Mapping[str, Sequence[Candidate]]) -> None:
        """Searches by bisection for the largest loss budget whose optimal choice of formats meets the limit.

        Budgets range from about the smallest loss of a single product to the sum of the products' largest losses.
        """
        losses = [item.loss for options in candidates.values() for item in options]
        if not losses:
            return
        names = list(losses[0])
        worst = {
            name: sum(max((o.loss[name] for o in options), default=0.0) for options in candidates.values())
            for name in names
        }
        least = min((x for loss in losses for x in loss.values() if x > 0), default=1e-12)
        low, high = math.log(min(1.0, least / max(max(worst.values()), 1e-300))), 0.0
        for i in range(BISECTIONS):
            self._progress("exact choices", i, BISECTIONS)
            middle = high if i == 0 else (low + high) / 2
            budget = {name: math.exp(middle) * total for name, total in worst.items()}
            try:
                formats = mixed(candidates, budget)
            except Infeasible:
                low = middle
                continue
            if self._keeps(self._try(formats)):
                if i == 0:
                    return
                low = middle
            else:
                high = middle

    def _change_single(self, candidates: Mapping[str, Sequence[Candidate]]) -> None:
        """Changes the format of one product of the fastest file at a time; keeps faster files within the limit."""
        nodes = sorted(candidates, key=lambda node: -max((item.saved for item in candidates[node]), default=0.0))
        moves = [(node, name) for node in nodes for name in (None, *(item.format for item in candidates[node]))]
        spent_s = 0.0
        for node, name in moves:
            self._progress("seconds of changes of single products", int(spent_s), math.ceil(60 * self._minutes))
            if not (kept := self._within()) or spent_s > 60 * self._minutes:
                return
            best = self._formats[kept[0]]
            changed = {each: form for each, form in best.items() if each != node}
            if name is not None:
                changed[node] = name
            if changed == best:
                continue
            try:
                compared = self._bench.once(
                    f"change {digest([dict(best), changed])}", partial(self._compare, best, changed)
                )
            except MeasurementError:
                continue
            spent_s += compared["seconds"]
            if compared["ratio"] < 1 - LEAST_GAIN and compared["wins"] > LEAST_WINS:
                self._try(changed)

    def _compare(self, best: Formats, changed: Formats) -> dict[str, float]:
        """Times a changed file in alternation with the best file; also returns the seconds that this took."""
        began = time.monotonic()
        files = self._bench.file(best), self._bench.file(changed)
        timed = self._bench.timed(*files, self._choosing[:TIMED], TRY_S)
        return {**timed, "seconds": time.monotonic() - began}

    def final(self, chosen: Sequence[Formats], scoring: Sequence[int], target: Path, *, threads: int) -> QuantisedFile:
        """Times the chosen files again, scores them on ``scoring``, and writes the fastest one that meets the limit."""
        bench = self._bench
        rounds: dict[str, list[float]] = {"original": []}
        original_s = []
        for i in range(ROUNDS):
            self._progress("final rounds", i, ROUNDS)
            for formats in (None, *chosen):
                key = "original" if formats is None else digest(dict(formats))
                timed = bench.once(f"final {i} {key}", partial(self._timed_at_end, formats))
                rounds.setdefault(key, []).append(timed["ratio"])
                original_s.append(timed["first_s"])
        noise = max(REPEATABLE, *(abs(ratio - 1) for ratio in rounds["original"]))
        notes = [self._note] if self._note else []
        best: Formats | None = None
        scored: Loss | None = None
        for formats in sorted(chosen, key=lambda each: float(np.median(rounds[digest(dict(each))]))):
            if np.median(rounds[digest(dict(formats))]) >= 1 - noise:
                break
            file = bench.file(formats)
            scored = self._judge.loss(bench.outputs(file, scoring))
            if scored.value <= self._limit:
                best = formats
                publish(Path(file), target)
                break
            notes.append(
                f"{told(formats, self.products)}: discarded; it loses {scored.value:.4f} on data not used for choices"
            )
        key = "original" if best is None else digest(dict(best))
        tried = None if best is None else self.tried[key]
        files = (Path(self._source), *external_files(self._source))
        size = sum(file.stat().st_size for file in files)
        return QuantisedFile(
            source=self._source,
            file=None if best is None else str(target),
            formats=told(best or {}, self.products),
            limit=self._limit,
            unit=self._judge.unit,
            loss=None if scored is None or best is None else scored.value,
            upper=None if tried is None else tried.upper,
            ratio=float(np.median(rounds[key])) if best is not None else 1.0,
            ratio_low=min(rounds[key]),
            ratio_high=max(rounds[key]),
            repeatability=noise,
            original_s=float(np.median(original_s)),
            original_bytes=size,
            size_bytes=size if tried is None or tried.size_bytes is None else tried.size_bytes,
            choosing=len(self._choosing),
            scored=len(scoring),
            rounds=ROUNDS,
            threads=threads,
            tried=tuple(sorted(self.tried.values(), key=lambda each: (not each.uniform, each.ratio or math.inf))),
            notes=tuple(notes),
        )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
