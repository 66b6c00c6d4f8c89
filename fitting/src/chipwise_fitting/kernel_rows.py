"""Predicts measured matrix products and attention calls with the kernel models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chipwise.core.csvfile import read_rows
from chipwise.errors import ChipwiseError
from chipwise_fitting.optable import price_rows
from chipwise_fitting.score import LeaveOut, Row, fold_of, measured

_GEMM = ("row_id", "system", "backend", "dtype", "m", "n", "k", "latency_s")
_ATTENTION = (
    "row_id",
    "phase",
    "system",
    "backend",
    "batch",
    "query_tokens",
    "past_tokens",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "attn_dtype",
    "kv_cache_dtype",
    "window_size",
    "latency_s",
)


def gemm(truth: Path, leave_out: LeaveOut) -> list[Row]:
    """Predicts the rows of ``gemm.csv``: system, backend, dtype, m, n, k, latency_s."""
    rows = read_rows(truth, required=("row_id", "system", "dtype", "m", "n", "k", "latency_s"), known=_GEMM)
    times = _latencies(rows, truth)
    return _predict([{"op": "matmul", **row} for row in rows], times, leave_out, subset=lambda row: row["system"])


def attention(truth: Path, leave_out: LeaveOut) -> list[Row]:
    """Predicts the rows of ``attention.csv``: phase, system, backend, batch, tokens, heads, formats, latency_s."""
    rows = read_rows(
        truth, required=("row_id", "phase", "system", "num_heads", "attn_dtype", "latency_s"), known=_ATTENTION
    )
    asked = [
        {"op": "attention", "dtype": row["attn_dtype"], **{k: v for k, v in row.items() if k != "attn_dtype"}}
        for row in rows
    ]
    times = _latencies(rows, truth)
    return _predict(asked, times, leave_out, subset=lambda row: f"{row['phase']} {row['system']}")


def _latencies(rows: Sequence[Mapping[str, str]], file: Path) -> list[float]:
    return [measured(row["latency_s"], column="latency_s", row=i, file=file) for i, row in enumerate(rows, start=1)]


def _predict(
    rows: Sequence[Mapping[str, str]],
    times: Sequence[float],
    leave_out: LeaveOut,
    *,
    subset: Callable[[Mapping[str, str]], str],
) -> list[Row]:
    folds: dict[str | None, list[int]] = {}
    problems: dict[int, str] = {}
    for i, row in enumerate(rows):
        try:
            folds.setdefault(fold_of(row["system"], leave_out), []).append(i)
        except ChipwiseError as error:
            problems[i] = str(error)
    answers: dict[int, dict[str, str]] = {}
    for fold, members in folds.items():
        answers |= dict(zip(members, price_rows([rows[i] for i in members], fold=fold), strict=True))
    return [_row(row, times[i], answers.get(i), problems.get(i, ""), subset(row)) for i, row in enumerate(rows)]


def _row(row: Mapping[str, str], truth: float, answer: Mapping[str, str] | None, problem: str, subset: str) -> Row:
    if answer is None or answer["error"]:
        return Row(
            row_id=row["row_id"],
            subset=subset,
            truth=truth,
            predicted=None,
            problem=problem if answer is None else answer["error"],
        )
    return Row(
        row_id=row["row_id"],
        subset=subset,
        truth=truth,
        predicted=float(answer["latency_s"]),
        low=float(answer["low_s"]),
        high=float(answer["high_s"]),
    )
