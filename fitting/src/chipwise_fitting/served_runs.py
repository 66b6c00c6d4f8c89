"""Reads measured served runs from a table: each run's request, and its measured time per token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.csvfile import read_rows, whole
from chipwise.errors import ChipwiseError, SpecError
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.plan import node_plan
from chipwise.predict.served.request import Request
from chipwise_fitting.score import measured

# Our name of a column -> its names in tables: those of aiconfigurator's sample of runs, and shorter ones.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "row_id": ("row_id", "id"),
    "model": ("model", "model_path"),
    "device": ("device", "system"),
    "runtime": ("runtime", "backend"),
    "weights": ("gemm_quant", "gemm_quant_mode"),
    "experts": ("moe_quant", "moe_quant_mode"),
    "precision": ("precision",),
    "tp": ("tp", "tp_size"),
    "pp": ("pp", "pp_size"),
    "dp": ("attn_dp", "attention_dp_size", "dp"),
    "ep": ("moe_ep", "moe_ep_size", "ep"),
    "batch": ("batch", "batch_size"),
    "isl": ("isl",),
    "osl": ("osl",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """One row: a request that can be estimated, or the reason why not."""

    row_id: str
    request: Request | None
    tpot_s: float
    problem: str = ""


def read_runs(path: Path) -> list[ServedRun]:
    """Reads the runs of a table whose times per output token are in ``tpot_s`` or ``silicon_tpot_ms``.

    Runs with prefill and decode on separate machines (``mode`` other than ``agg``) are left out.

    Raises:
        SpecError: The file is missing or has no such columns.
    """
    rows = read_rows(path, required=())
    if not {"tpot_s", "silicon_tpot_ms"} & set(rows[0]):
        raise SpecError("is not a table of served runs: it has no column tpot_s or silicon_tpot_ms", file=str(path))
    column, unit_s = ("tpot_s", 1.0) if "tpot_s" in rows[0] else ("silicon_tpot_ms", 1e-3)
    return [
        _run(row, unit_s * measured(row[column] or "", column=column, row=i, file=path))
        for i, row in enumerate(rows, start=1)
        if row.get("mode", "agg") == "agg"
    ]


def _run(row: Mapping[str, str], tpot_s: float) -> ServedRun:
    row_id = _cell(row, "row_id")
    try:
        return ServedRun(row_id=row_id, request=_request(row), tpot_s=tpot_s)
    except ChipwiseError as error:
        return ServedRun(row_id=row_id, request=None, tpot_s=tpot_s, problem=str(error))


def _request(row: Mapping[str, str]) -> Request:
    tp, dp, ep = node_plan(*(_whole(row, name) for name in ("tp", "dp", "ep")))
    return Request(
        model=_needed(row, "model"),
        deployment=Deployment(
            device=_needed(row, "device"),
            runtime=_needed(row, "runtime"),
            weights=_weights(row),
            tp=tp,
            pp=_whole(row, "pp"),
            ep=ep,
            dp=dp,
        ),
        batch=_whole(row, "batch") * dp,
        prompt_tokens=_whole(row, "isl"),
        new_tokens=_whole(row, "osl"),
    )


def _weights(row: Mapping[str, str]) -> str | None:
    for name in ("experts", "weights", "precision"):
        if text := _cell(row, name):
            return text
    return None


def _cell(row: Mapping[str, str], name: str) -> str:
    return next((row[key] for key in COLUMNS[name] if row.get(key)), "")


def _whole(row: Mapping[str, str], name: str) -> int:
    """Reads a count; an absent cell and zero mean one.

    Raises:
        SpecError: The cell is not a whole number, or negative.
    """
    value = whole({name: _cell(row, name)}, name, default=1)
    if value < 0:
        raise SpecError(f"must be at least 0, not {value}", field=name)
    return max(1, value)


def _needed(row: Mapping[str, str], name: str) -> str:
    """Returns the content of a cell that must not be empty.

    Raises:
        SpecError: The cell is empty, or its column is missing.
    """
    if text := _cell(row, name):
        return text
    raise SpecError(f"is empty, or there is no column {' or '.join(COLUMNS[name])}", field=name)
