"""Image models in PyTorch: reads the table of timm's benchmarks, fits, and predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from chipwise.errors import ChipwiseError, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.whole_runs import vision
from chipwise.predict.whole_runs.sums import Amount, Law, named
from chipwise.predict.whole_runs.vision import Setup, VisionTransformer, constants, plain_law
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit
from chipwise_fitting.table_runs import (
    TableRun,
    fit_runs,
    number,
    packed_rows,
    predicted_rows,
    table_in,
    with_laws,
    write_constants,
)

FILE = "vision.csv.gz"
SOURCE = "huggingface/pytorch-image-models aa4b585, results/benchmark-infer-*.csv (Apache-2.0), 2026-08"
NEEDED = ("row_id", "device", "runtime", "dtype", "model", "batch", "step_ms")
SIZES = ("image_size", "patch", "width", "depth", "heads", "mlp_hidden")
START = {
    "products": 0.4,
    "attention": 1.0,
    "attention.small": 1.3,
    "activations": 0.7,
    "kernel": math.log(5e-6),
    "pass": math.log(3e-4),
    "other.flops": 0.4,  # for other than plain vision transformers, in addition to the terms above
    "other.activations": 0.3,
    "other.pass": 1.2,
}
NOISE = 0.05  # standard deviation of a run's logarithm
SAME_MODEL = 0.1  # log ratio of computed to timm's FLOPs above which a row's sizes do not describe the whole model
STYLES = ("True", "False")
MOST_TOKENS = 5000  # rows with more tokens are hybrid models whose columns count a stem's pixels as tokens


def prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    if not levels:
        return START[kind], 1.0
    own = levels[0] not in ("cpu", "gpu") and not any(name in levels for name in STYLES)
    return 0.0, (0.12 if own else 0.3) * (2.0 if kind in ("kernel", "pass", "other.pass") else 1.0)


def read(path: Path) -> list[TableRun]:
    """Reads every row of the table that was timed.

    Raises:
        SpecError: The table cannot be read, or lacks a column.
    """
    rows = [row for row in packed_rows(path, NEEDED) if number(row["step_ms"])]
    counted: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        macs, activations = number(row.get("gmacs", "")), number(row.get("macts_m", ""))
        if macs and activations:
            counted[row["model"], row.get("image_size", "")] = 2e9 * macs, 1e6 * activations
    return [_run(row, counted) for row in rows]


def _run(row: Mapping[str, str], counted: Mapping[tuple[str, str], tuple[float, float]]) -> TableRun:
    subset = f"{row['device']} {row['runtime']}"
    measured = float(row["step_ms"]) / 1e3
    plain = row.get("plain") == "1"
    try:
        sheet = datasheet.load(row["device"])
        version = ".".join((row.get("runtime_version") or "2.9").split(".")[:2])
        setup = Setup(
            device=sheet,
            runtime=row["runtime"],
            dtype=row["dtype"],
            layout=row.get("layout") or "nchw",
            version="1.13" if version == "1.1" else version,
        )
        batch = max(1, round(number(row["batch"]) or 1))
        law, flops = _law(row, setup, batch, counted.get((row["model"], row.get("image_size", ""))))
        rival = batch * flops / setup.peak_flops_per_s
    except ChipwiseError as error:
        return TableRun(row_id=row["row_id"], subset=subset, measured=measured, problem=str(error))
    return TableRun(
        row_id=row["row_id"],
        subset=f"{'plain' if plain else 'other'}, {subset}",
        measured=measured,
        model=row["model"],
        device=sheet.name,
        family=sheet.family,
        vendor=sheet.vendor,
        place=f"{'plain' if plain else 'other'}|{setup.place}",
        law=law,
        rival=rival,
        rival_of=("place", "subset", "device", "vendor"),
    )


def _law(row: Mapping[str, str], setup: Setup, batch: int, counted: tuple[float, float] | None) -> tuple[Law, float]:
    """Returns a row's law and FLOPs per image: from its sizes if it is a plain transformer, else from timm's counts.

    Raises:
        SpecError: The row has neither sizes nor counts.
    """
    sizes = [number(row.get(name, "")) for name in SIZES]
    tokens = number(row.get("tokens", "")) or 0.0
    if row.get("plain") == "1" and all(sizes) and tokens < MOST_TOKENS:
        whole = {name: round(value or 0) for name, value in zip(SIZES, sizes, strict=True)}
        model = VisionTransformer(
            **whole,
            gated=number(row.get("gated_mlp", "")) == 1,
            prefix_tokens=round(float(row.get("prefix_tokens") or 0)),
        )
        flops = model.product_flops + model.attention_flops
        if counted is None or abs(math.log(flops / counted[0])) < SAME_MODEL:
            return plain_law(model, setup, batch), flops
    if counted is None:
        raise SpecError(
            "has neither the sizes of a plain vision transformer nor gmacs and macts_m", field=row["row_id"]
        )
    flops, activations = counted
    style = row.get("arch_class") or "unknown"
    if row.get("plain") == "1":
        style = f"{style}, hybrid"
    return counted_law(flops, activations, style, setup, batch), flops


def counted_law(flops: float, activations: float, style: str, setup: Setup, batch: int) -> Law:
    """Returns the summands of a pass of any image model, from its FLOPs and activations per image.

    Settings have the same terms as for plain vision transformers; each style has its own terms in addition.

    Args:
        flops: FLOPs per image; a multiply-add counts as two.
        activations: Values that the kernels write per image.
        style: Class of models that are built alike, such as ``SwinTransformerV2``.
        setup: Device, runtime, format, memory layout and version of the run.
        batch: Number of images.

    Raises:
        Unsupported: The device lists no rate of such products.
    """
    styles = (style, f"{style}|{setup.device.kind == 'cpu'}|{setup.runtime}", f"{style}|{setup.device.name}")
    moved = setup.value_bytes * batch * activations
    values = (
        (batch * flops / setup.peak_flops_per_s, 0, "products", "other.flops"),
        (moved / setup.device.mem_bandwidth_bytes_per_s, 2, "activations", "other.activations"),
        (1.0, 4, "pass", "other.pass"),
    )
    return tuple(Amount(v, place, named(plain, setup.levels) + named(own, styles)) for v, place, plain, own in values)


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law's terms to the table and writes ``vision.json``.

    Raises:
        SpecError: No row can be predicted.
    """
    file = table_in(tables, FILE)
    runs = with_laws(read(file), file)
    progress(f"{len(runs)} runs of {len({run.model for run in runs})} models")
    found = fit_runs(runs, Fit(prior=prior, noise=NOISE), source=SOURCE, splits={"model": 10})
    write_constants(found, out / vision.DATA.name)
    constants.cache_clear()
    return f"vision: {len(runs)} runs"


def rows(truth: Path, leave_out: str) -> dict[str, list[Row]]:
    """Predicts every row of the table."""
    return {"step_s": predicted_rows(read(table_in(truth, FILE)), constants(), leave_out)}
