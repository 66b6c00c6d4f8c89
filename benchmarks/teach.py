"""A machine taught from 0 to 200 measured models, against plain regressions on the raw choices.

    python benchmarks/teach.py --rows edge.csv.gz --out teach.csv
    python benchmarks/teach.py --measure 60 --measured here.csv --out teach-here.csv

Tables, each read back from a CSV file as a user's would be:

- ``--rows``: a table of language models on many machines; those with at least ``--least`` usable times each.
- Made-up machines whose truth is known: 200 random encoder-decoders of two widths to learn from and 100 to judge by,
  whole-model seconds alone, 2 % noise. Each truth has rates, ramps and costs that no data sheet knows.
- ``--translators``: the eight tables of mit-han-lab/hardware-aware-transformers (``latency_dataset``), 300 rows each:
  means over the layers of encoder-decoders in PyTorch; a Raspberry Pi on its own data sheet, a Xeon and a TITAN on
  those of their successors.
- With ``--measure``: random designs on this machine in ONNX Runtime, totals in seconds (``--measured`` keeps them).

Models are held out, not rows: half of a table's models (the 100 of a made-up machine) judge, and rows of the others are
drawn to learn from, ``--repeats`` times. One line a table and number of rows: mean and median error of what was taught,
of the data sheet alone, of ridge and of gradient boosting (LightGBM where it is installed, else scikit-learn's) on the
raw choices, and the share of held-out times inside the 90 % interval. ``table_noise`` says what no model can do better
than by much: the mean spread of times of one setting about their median, where a table has the same setting more than
once; of ``--translators`` the mean error of gradient boosting that learnt from all other rows, about 1,900.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import FORMATS
from chipwise.core.statistics import Z90
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.teach.checks import check
from chipwise.deploy.teach.observations import MeasuredRow, Observations, observe, prior_deviation
from chipwise.deploy.teach.posterior import fit
from chipwise.deploy.teach.reading import read_table
from chipwise.design.targets.formats import format_there
from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.workload import Workload
from chipwise.model.published.read import resolve
from chipwise.predict.kernels.local import rows_of
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import grouped
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request
from provenance import stamp

COUNTS = (0, 5, 10, 20, 50, 100, 200)
NOISE = 0.02
PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)  # of ridge regression
COLUMNS = (
    "table", "base", "rows", "judged", "mean_error", "median_error", "sheet_error", "ridge_error", "boosting_error",
    "inside_90", "table_noise",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows and quantities of a table on a data sheet; the last ``fixed`` rows test, else half of its models."""

    name: str
    rows: list[MeasuredRow]
    seen: Observations
    sheet: DeviceProfile
    fixed: int = 0
    floor: float | None = None  # error with all other rows that the file holds


def main() -> None:
    """Teaches every table with every number of rows, writes a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="a table of many machines, such as edge.csv.gz")
    parser.add_argument("--least", type=int, default=25, help="times of a machine of --rows")
    parser.add_argument(
        "--translators", type=Path, help="a folder of tables of encoder-decoders, TASK_PART_MACHINE_all.csv"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="rows to learn from")
    parser.add_argument("--no-own", action="store_true", help="leave out made-up machines")
    parser.add_argument("--measure", type=int, default=0, help="random designs to measure on this machine")
    parser.add_argument("--measured", type=Path, default=Path("teach-here.rows.csv"), help="of --measure")
    parser.add_argument("--base", default="xeon-8480-plus:1-core", help="data sheet of this machine, for --measure")
    parser.add_argument("--only", default="", help="tables whose name contains this text")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for table in tables(args):
            for row in judged(table, args.repeats, args.counts):
                writer.writerow(row)
                stream.flush()
                print("  ".join(f"{name} {value}" for name, value in row.items() if value != ""), flush=True)
    stamp(args.out)


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """Every table that was asked for."""
    with tempfile.TemporaryDirectory() as place:
        for name, base, path, fixed in sources(args, Path(place)):
            sheet = datasheet.load(base)
            rows = list(read_table(path).rows) if not name.startswith("edge") else of_machine(path, base)
            seen, _ = observe(rows, sheet)
            if len(seen) >= (args.least if name.startswith("edge") else 1):
                whole = args.translators / f"{name}_all.csv" if args.translators else None
                floor = floor_of(whole, fixed) if whole is not None and whole.exists() else None
                yield Table(name=name, rows=rows, seen=seen, sheet=sheet, fixed=fixed, floor=floor)


def sources(args: argparse.Namespace, place: Path) -> Iterator[tuple[str, str, Path, int]]:
    """Name, base, file and number of test rows at its end."""
    if args.measure:
        yield "this machine, ONNX Runtime", args.base, measured_here(args.measured, args.measure), 0
        return
    for number, (name, base, machine) in enumerate(FAKES):
        if args.only in name and not args.no_own:
            yield name, base, made_up(place / f"{number}.csv", datasheet.load(base), machine, 300, seed=number), 100
    for number, path in enumerate(sorted(args.translators.glob("*_all.csv")) if args.translators else ()):
        if args.only in path.stem:
            base = next(base for name, base in TRANSLATORS.items() if name in path.stem)
            yield path.stem.removesuffix("_all"), base, translators(path, place / f"pairs{number}.csv"), 100
    if args.rows is not None:
        for machine in read_table_machines(args.rows):
            if args.only in f"edge {machine}":
                yield f"edge {machine}", machine, args.rows, 0


TRANSLATORS = {"raspberrypi": "raspberry-pi-4", "xeon": "xeon-8380", "titanxp": "titan-rtx"}


def translators(path: Path, out: Path, count: int = 300) -> Path:
    """Rows of a table of encoder-decoders, with their common lengths and format."""
    with path.open() as stream:
        lines = list(csv.DictReader(stream))
    tokens = 23 if path.stem.startswith("iwslt") else 30
    with out.open("w", newline="") as stream:
        names = [name for name in lines[0] if not name.startswith("latency")]
        writer = csv.writer(stream)
        writer.writerow([*names, "src_len", "tgt_len", "runtime", "dtype", "total_ms"])
        for i in np.random.default_rng(1).permutation(len(lines))[:count]:
            total = sum(float(lines[i][f"latency_mean_{side}"]) for side in ("encoder", "decoder"))
            writer.writerow([*(lines[i][name] for name in names), tokens, tokens, "torch", "fp32", total])
    return out


def floor_of(path: Path, judged: int, count: int = 300) -> float:
    """Mean error on the test rows of gradient boosting trained on all other rows of a table of pairs."""
    with path.open() as stream:
        lines = list(csv.DictReader(stream))
    order = np.random.default_rng(1).permutation(len(lines))
    last = order[count - judged : count]
    rest = np.setdiff1d(order, last)
    names = [name for name in lines[0] if not name.startswith("latency")]
    features = np.array([[float(line[name]) for name in names] for line in lines])
    total = np.array([sum(float(line[f"latency_mean_{side}"]) for side in ("encoder", "decoder")) for line in lines])
    return error(boosting(features[rest], total[rest], features[last], leaf=20), total[last])


def read_table_machines(path: Path) -> list[str]:
    """The machines of a table whose data sheets ship."""
    known = set(datasheet.names())
    return [name for name in read_table(path).machines if name in known]


def of_machine(path: Path, machine: str) -> list[MeasuredRow]:
    """The usable rows of one machine."""
    try:
        return list(read_table(path, where={"device": machine}).rows)
    except ChipwiseError:
        return []


def judged(table: Table, repeats: int, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One line for each number of rows."""
    features = raw_choices(table.rows, table.seen)
    noise = table_noise(table) if table.floor is None else f"{table.floor:.4g}"
    for count in counts:
        found = []
        for repeat in range(repeats if count < 100 else 1):
            rng = np.random.default_rng([repeat, count])
            learn, judge = split(table, count, rng)
            if len(learn) < count or not len(judge):
                break
            found.append(errors(table, features, learn, judge))
        if found:
            mean = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
            line = {"table": table.name, "base": table.sheet.name, "rows": count}
            yield line | {name: f"{value:.4g}" for name, value in mean.items()} | {"table_noise": noise}


def split(table: Table, count: int, rng: np.random.Generator) -> tuple[Float64Array, Float64Array]:
    """Quantities for learning and for testing, of different models."""
    n = len(table.seen)
    if table.fixed:
        free = rng.permutation(n - table.fixed)
        return np.sort(free[:count]), np.arange(n - table.fixed, n)
    models = sorted(set(table.seen.models))
    held = set(rng.permutation(models)[: max(1, len(models) // 2 if len(models) < 20 else len(models) // 4)])
    judge = np.array([i for i, name in enumerate(table.seen.models) if name in held])
    rest = rng.permutation([i for i, name in enumerate(table.seen.models) if name not in held])
    return np.sort(rest[:count]).astype(int), judge


def errors(table: Table, features: Float64Array, learn: Float64Array, judge: Float64Array) -> dict[str, float]:
    """Errors of all predictors on the test rows ``judge``."""
    asked = table.seen.only(judge)
    truth = asked.seconds
    wrong = {"sheet_error": error(asked.sheet_s, truth), "ridge_error": math.nan, "boosting_error": math.nan}
    if not len(learn):
        inside = np.mean(np.abs(np.log(truth / asked.sheet_s)) <= asked.halfwidth)
        misses = np.abs(asked.sheet_s / truth - 1)
    else:
        known = table.seen.only(learn)
        posterior = fit(known, common=prior_deviation(known))
        widen = check(table.rows, known).widen
        logs, deviations = posterior.predict(asked)
        misses = np.abs(np.exp(logs) / truth - 1)
        inside = np.mean(np.abs(np.log(truth) - logs) <= Z90 * widen * deviations)
        wrong["ridge_error"] = error(ridge(features[learn], known.seconds, features[judge]), truth)
        wrong["boosting_error"] = error(boosting(features[learn], known.seconds, features[judge]), truth)
    return {
        "judged": float(len(judge)),
        "mean_error": float(np.mean(misses)),
        "median_error": float(np.median(misses)),
        "inside_90": float(inside),
        **wrong,
    }


def error(predicted: Float64Array, truth: Float64Array) -> float:
    """Mean absolute error as a share of the truth."""
    return float(np.mean(np.abs(predicted / truth - 1)))


def boosting(
    features: Float64Array, seconds: Float64Array, asked: Float64Array, *, leaf: int | None = None
) -> Float64Array:
    """Seconds by gradient boosting on logarithms; by default a tenth of the rows in each leaf."""
    leaf = max(2, len(seconds) // 10) if leaf is None else leaf
    try:
        from lightgbm import LGBMRegressor

        model: Any = LGBMRegressor(min_child_samples=leaf, verbose=-1, random_state=0)
    except ModuleNotFoundError:
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(min_samples_leaf=leaf, random_state=0)
    return np.asarray(np.exp(model.fit(features, np.log(seconds)).predict(asked)))


def raw_choices(rows: Sequence[MeasuredRow], seen: Observations) -> Float64Array:
    """Raw features of a model and its request, without the chip, (n, features).

    Sizes are logarithms: widths, layers, heads, FFN, vocabulary of decoder and encoder, tokens, batch, bits per weight;
    one column for each runtime, variant and quantity.
    """
    archs: dict[str, ArchSpec] = {}
    for row in rows:
        if row.identity not in archs:
            archs[row.identity] = row.model if isinstance(row.model, ArchSpec) else resolve(row.model)
    chosen = [rows[int(i)] for i in seen.rows]
    sizes = [[*_sizes(archs[row.identity]), *_request(row)] for row in chosen]
    marks = [
        [quantity, f"runtime {row.runtime}", row.variant] for row, quantity in zip(chosen, seen.quantities, strict=True)
    ]
    names = sorted({name for each in marks for name in each})
    return np.hstack([np.array(sizes), np.array([[float(name in each) for name in names] for each in marks])])


def _sizes(arch: ArchSpec) -> list[float]:
    return [
        np.log(arch.d_model),
        np.log(arch.encoder_width),
        np.log(arch.vocab_size),
        *_stack(arch.layers),
        *_stack(arch.encoder),
    ]


def _stack(layers: Sequence[Layer]) -> list[float]:
    """Depth, and means over the layers of heads, key heads and FFN widths."""
    if not layers:
        return [0.0] * 4
    heads = [float(getattr(layer.attention, "heads", 0)) for layer in layers]
    kv_heads = [float(getattr(layer.attention, "kv_heads", 0)) for layer in layers]
    widths = [float(getattr(layer.ffn, "width", 0) or 0) for layer in layers]
    return [float(np.log(len(layers))), *(float(np.log1p(np.mean(each))) for each in (heads, kv_heads, widths))]


def _request(row: MeasuredRow) -> list[float]:
    bits = FORMATS[row.weights].bits_per_weight if row.weights in FORMATS else 16.0
    past = row.prompt_tokens if row.context is None else row.context
    return [float(np.log(value)) for value in (row.prompt_tokens, row.new_tokens, 1 + past, row.batch, bits)]


def ridge(features: Float64Array, seconds: Float64Array, asked: Float64Array) -> Float64Array:
    """Seconds of ``asked``, from logarithms of seconds on standardised features; the penalty by leave-one-out.

    References:
        Golub, Heath and Wahba 1979, Generalized cross-validation, Technometrics 21:215 (the closed form).
    """
    mean, spread = features.mean(axis=0), features.std(axis=0)
    kept = spread > 1e-9
    x, z = ((each[:, kept] - mean[kept]) / spread[kept] for each in (features, asked))
    y = np.log(seconds)
    centre = y.mean()
    best, answer = np.inf, np.full(len(asked), centre)
    for penalty in PENALTIES:
        gram = x.T @ x + penalty * np.eye(x.shape[1])
        solved = np.linalg.solve(gram, x.T)
        hat = x @ solved
        left = (y - centre - hat @ (y - centre)) / np.maximum(1 - np.diag(hat) - 1 / len(y), 1e-3)
        error = float(np.mean(left**2))
        if error < best:
            best, answer = error, centre + z @ (solved @ (y - centre))
    return np.asarray(np.exp(np.clip(answer, y.min() - 3, y.max() + 3)))


def table_noise(table: Table) -> float | str:
    """Mean deviation of repeated times of a setting from their median; empty if none was repeated."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for i, seconds in enumerate(table.seen.seconds):
        row, quantity = table.rows[int(table.seen.rows[i])], table.seen.quantities[i]
        read = row.prompt_tokens if quantity != "tpot" else row.context
        groups.setdefault((row.identity, row.runtime, row.weights, quantity, read), []).append(float(seconds))
    spread = [abs(value / np.median(values) - 1) for values in groups.values() if len(values) > 1 for value in values]
    return f"{np.mean(spread):.4g}" if len(spread) >= 5 else ""


def shake(rng: np.random.Generator) -> float:
    """The noise of one measurement."""
    return math.exp(NOISE * rng.standard_normal())


Truth = Callable[[float, float, float, str], float]
"""Seconds of a kernel from its FLOPs, bytes, rows and kind."""


def board(flops: float, moved: float, rows: float, kind: str) -> float:
    """A small board: products ramp up with rows, attention is slow, every kernel waits."""
    seconds = max(flops / (15e9 * rows / (rows + 3)), moved / 3.2e9) + 60e-6
    return seconds * (2.5 if kind == "attention" else 1.0)


def gpu(flops: float, moved: float, rows: float, kind: str) -> float:
    """A GPU that mostly waits for launches."""
    return max(flops / (10e12 * min(1.0, rows / 64)), moved / 400e9) + 35e-6


def server(flops: float, moved: float, rows: float, kind: str) -> float:
    """A server's CPU: a cache that holds small matrices, and a head without it."""
    bandwidth = 400e9 if moved < 4e6 else 90e9
    return (flops / 900e9) ** 0.9 * 1e-9**0.1 + moved / bandwidth + 9e-6


FAKES: tuple[tuple[str, str, Truth], ...] = (
    ("made-up board", "raspberry-pi-4", board),
    ("made-up GPU", "titan-rtx", gpu),
    ("made-up server", "epyc-7763", server),
    ("made-up board on a server's sheet", "epyc-7763", board),
)


def translator(rng: np.random.Generator) -> ArchSpec:
    """A random encoder-decoder; every layer chooses for itself."""
    read, write = (int(each) for each in rng.choice([512, 640], 2))
    return ArchSpec(
        name="translator",
        stem=Tokens(vocab_size=32_768),
        d_model=write,
        encoder_d_model=0 if read == write else read,
        layers=tuple(_layer(rng, decodes=True) for _ in range(rng.integers(1, 7))),
        encoder=tuple(_layer(rng, decodes=False) for _ in range(rng.integers(2, 7))),
        positions="none",
        norm="layernorm",
        norm_bias=True,
        norm_place="post",
    )


def _layer(rng: np.random.Generator, *, decodes: bool) -> Layer:
    def attention(*, causal: bool) -> Attention:
        heads = int(rng.choice([4, 8]))
        return Attention(heads=heads, kv_heads=heads, head_size=512 // heads, rope=False, causal=causal)

    ffn = FeedForward(width=int(rng.choice([512, 1024, 2048, 3072])), gated=False, bias=True, activation="relu")
    return Layer(attention=attention(causal=decodes), cross=attention(causal=False) if decodes else None, ffn=ffn)


def made_up(path: Path, sheet: DeviceProfile, machine: Truth, count: int, *, seed: int) -> Path:
    """A table of whole-model seconds of random encoder-decoders on a machine of known truth."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["model", "runtime", "dtype", "src_len", "tgt_len", "seconds"])
        for _ in range(count):
            arch = translator(rng)
            seconds = true_s(arch, sheet, machine) * shake(rng)
            writer.writerow([json.dumps(io.to_data(arch)), "torch", "fp32", 30, 30, f"{seconds:.6g}"])
    return path


def true_s(arch: ArchSpec, sheet: DeviceProfile, machine: Truth) -> float:
    """Seconds to read 30 tokens and write 30."""
    request = Request(
        model=arch,
        deployment=Deployment(device=sheet, runtime="torch", weights="fp32"),
        prompt_tokens=30,
        new_tokens=30,
    )
    (group,), _ = grouped([request])
    total = 0.0
    for each, times in ((group.prefill(), 1), (group.decode(), 29)):
        total += times * 1e-3
        for part in lower_pass(each.setting, each.step):
            work = part.op.work()
            figures = (float(np.max(value)) for value in (work.flops, work.bytes, rows_of(part.op)))
            total += times * part.count * machine(*figures, part.op.kind)
    return total


def measured_here(path: Path, count: int) -> Path:
    """Random designs measured on this machine, as a table; existing rows of the file are kept."""
    designs, work = random_designs(count, seed=5), Workload(prompt_tokens=64, new_tokens=64)
    names = ["model", "runtime", "dtype", "prompt_tokens", "new_tokens", "seconds"]
    if not path.exists():
        path.write_text(",".join(names) + "\n")
    with path.open() as stream:
        known = sum(1 for _ in csv.reader(stream)) - 1
    for number in range(known, count):
        with tempfile.TemporaryDirectory() as place:
            found = measure(
                export_for("onnxruntime", designs[number], Path(place)), work, runtime="onnxruntime", threads=1
            )
        seconds = found.percentile("ttft", 0.5) + (work.new_tokens - 1) * found.percentile("tpot", 0.5)
        model = json.dumps(io.to_data(designs[number].arch))
        weights = format_there(designs[number].weights, "onnxruntime")
        with path.open("a", newline="") as stream:
            csv.writer(stream).writerow([model, "onnxruntime", weights, 64, 64, f"{seconds:.6g}"])
        print(f"measured {number + 1} of {count}", flush=True)
    return path


if __name__ == "__main__":
    main()
