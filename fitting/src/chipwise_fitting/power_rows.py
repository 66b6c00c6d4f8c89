"""Predicts the power of the kernel calls in a table, and compares it with measured watts.

Columns are those of aiconfigurator-core's kernel tables: ``op`` (context_attention, generation_attention, moe),
``device``, ``latency_s``, the sizes, and formats. All rows of one kind, format, window and routing are predicted at
once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.csvfile import MOST_TABLE_BYTES
from chipwise.core.files import read_text
from chipwise.errors import DataError, SpecError, Unsupported, nearest, short
from chipwise.hardware import datasheet
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import power
from chipwise.predict.kernels.routing import skew
from chipwise_fitting.experts import FORMATS, NOT_GATED
from chipwise_fitting.score import LeaveOut, Row, measured

ATTENTION = ("context_attention", "generation_attention")
ATTENTION_SIZES = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size")
MIXTURE_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
OVERSHOOT = 1.05  # factor on the power limit that boards may draw for a while
MAY_BE_0 = ("isl", "step", "window_size", "num_key_value_heads")
CACHES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}


def validate_power(truth: Any, *, leave_out: str = "none") -> Any:
    """Returns a data frame with ``row_id``, ``power_w``, ``low_w`` and ``high_w`` for each row of ``truth``.

    Args:
        truth: A data frame with the columns in the module's docstring. Measured watts, if present, are not read.
        leave_out: Which group of a row the fit leaves out: ``none``, ``device`` or ``family``.

    Raises:
        DataError: A row has an unknown kind of operator or format.
    """
    import pandas as pd

    answer = pd.DataFrame({"row_id": truth["row_id"]})
    for name in ("power_w", "low_w", "high_w"):
        answer[name] = np.nan
    for rows, op, device, routing in operators(truth):
        fold = {"none": None, "device": f"device:{device.name}", "family": f"family:{device.family}"}[leave_out]
        latency = truth["latency_s"].to_numpy(dtype=np.float64)[rows]
        found = power.power(op, device, latency, routing=routing, fold=fold)
        up = np.exp(found.log_halfwidth)
        ends = {"low_w": found.power_w / up, "high_w": np.minimum(found.power_w * up, OVERSHOOT * found.limit_w)}
        for name, values in {"power_w": found.power_w, **ends}.items():
            answer.iloc[rows, answer.columns.get_loc(name)] = values
    return answer


def operators(truth: Any) -> Iterator[tuple[Any, AttentionOp | ExpertsOp, datasheet.DeviceProfile, str]]:
    """Yields (row positions, operator, device, routing) for groups of rows that one operator represents.

    Raises:
        DataError: A row has an unknown kind of operator or format.
    """
    table = truth.reset_index(drop=True)
    known = table["op"].isin([*ATTENTION, "moe"])
    if not known.all():
        strange = ", ".join(sorted({short(item) for item in table["op"][~known]}))
        raise DataError(f"no power model for {strange}; known: attention and moe", field="op")
    for (name, kind), part in table.groupby(["device", "op"]):
        device = datasheet.load(str(name))
        if kind in ATTENTION:
            for (cache, windowed), rows in part.groupby(["kv_cache_dtype", part["window_size"] > 0]):
                yield rows.index.to_numpy(), attention(rows, _cache(cache), bool(windowed)), device, ""
            continue
        gated = [pair not in NOT_GATED for pair in zip(part["hidden_size"], part["inter_size"], strict=True)]
        for (dtype, routing, gate), rows in part.groupby(["moe_dtype", "distribution", np.array(gated)]):
            yield rows.index.to_numpy(), mixture(rows, dtype, bool(gate)), device, routing


def attention(rows: Any, cache: str, windowed: bool) -> AttentionOp:
    """Returns the operator of attention rows: context has ``isl`` new tokens, generation one after ``step`` tokens."""
    sizes = {name: rows[name].to_numpy(dtype=np.int64) for name in ATTENTION_SIZES}
    decode = rows["op"].iloc[0] == "generation_attention"
    return AttentionOp(
        batch=sizes["batch_size"],
        query_tokens=np.ones_like(sizes["isl"]) if decode else sizes["isl"],
        past_tokens=sizes["step"],
        heads=sizes["num_heads"],
        kv_heads=sizes["num_key_value_heads"],
        head_size=sizes["head_dim"],
        rope=False,
        window=sizes["window_size"] if windowed else None,
        activations="bf16",
        cache=cache,
    )


def mixture(rows: Any, dtype: str, gated: bool) -> ExpertsOp:
    """Returns the operator of expert rows: one device's share under tensor and expert parallelism."""
    if dtype not in FORMATS:
        raise DataError(f"unknown moe_dtype {dtype!r}; known: {', '.join(FORMATS)}")
    weights, activations = FORMATS[dtype]
    size = {name: rows[name].to_numpy(dtype=np.int64) for name in MIXTURE_SIZES}
    return ExpertsOp(
        tokens=size["num_tokens"],
        d_model=size["hidden_size"],
        width=np.maximum(size["inter_size"] // size["moe_tp_size"], 1),
        experts=size["num_experts"],
        local_experts=np.maximum(size["num_experts"] // size["moe_ep_size"], 1),
        topk=size["topk"],
        gated=gated,
        weights=weights,
        activations=activations,
    )


def _cache(name: str) -> str:
    if name not in CACHES:
        raise DataError(f"unknown kv_cache_dtype {name!r}; known: {', '.join(CACHES)}")
    return CACHES[name]


def watts(truth: Path, leave_out: LeaveOut) -> list[Row]:
    """Predicts the rows of ``power.csv``: kernels with their measured watts (``power_w``)."""
    import pandas as pd

    try:
        table = pd.read_csv(io.StringIO(read_text(truth, most=MOST_TABLE_BYTES)), low_memory=False)
    except ValueError as error:
        raise SpecError(f"cannot be read as a CSV table: {error}", file=str(truth)) from None
    _check(table, truth)
    found = validate_power(table, leave_out=leave_out)
    return [
        Row(
            row_id=str(row.row_id),
            subset=str(kind),
            truth=float(power_w),
            predicted=float(row.power_w),
            low=float(row.low_w),
            high=float(row.high_w),
        )
        for row, kind, power_w in zip(found.itertuples(), table["op"], table["power_w"], strict=True)
    ]


def _check(table: Any, file: Path) -> None:
    """Checks that every column exists and that measured values and sizes are numbers.

    Raises:
        SpecError: A column is missing, or a value is not a number; the message names row and column.
    """
    import pandas as pd

    _require(table, ("row_id", "op", "device", "latency_s", "power_w"), file)
    for name in ("latency_s", "power_w"):
        for i, value in enumerate(table[name], start=1):
            measured("" if pd.isna(value) else value, column=name, row=i, file=file)
    kinds = table["op"].isin(ATTENTION)
    for rows, sizes, texts in (
        (kinds, ATTENTION_SIZES, ("kv_cache_dtype",)),
        (table["op"] == "moe", MIXTURE_SIZES, ("moe_dtype", "distribution")),
    ):
        if not rows.any():
            continue
        _require(table, (*sizes, *texts), file)
        for name in sizes:
            numbers = pd.to_numeric(table[name], errors="coerce")
            least = 0 if name in MAY_BE_0 else 1
            _refuse(
                table,
                rows & ~((numbers >= least) & (numbers % 1 == 0)),
                name,
                f"a whole number of at least {least}",
                file,
            )
            table.loc[rows, name] = numbers[rows]
        for name in texts:
            _refuse(table, rows & table[name].isna(), name, "a name", file)
        for routing in table["distribution"][rows].unique() if "distribution" in texts else ():
            try:
                skew(str(routing))
            except Unsupported as error:
                raise SpecError(str(error), field="distribution", file=str(file)) from None


def _refuse(table: Any, bad: Any, name: str, wanted: str, file: Path) -> None:
    """Raises a SpecError for the first row that is ``bad``."""
    if bad.any():
        i = int(bad.to_numpy().argmax())
        value = table[name].iloc[i]
        shown = "empty" if value != value else short(value.item() if hasattr(value, "item") else value)
        raise SpecError(f"must be {wanted}, not {shown}", field=f"row {i + 1}, {name}", file=str(file))


def _require(table: Any, columns: Sequence[str], file: Path) -> None:
    for name in columns:
        if name not in table.columns:
            raise SpecError(f"has no column {name!r}; {nearest(name, list(table.columns))}", file=str(file))
