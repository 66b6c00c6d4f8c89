"""Draws the three pictures of docs/index.md as SVG: an estimate on several chips, an explanation, a search's result.

The first two are computed by chipwise; the third shows the table of ``benchmarks/winner_vs_baseline.py``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from html import escape
from pathlib import Path

import chipwise
from chipwise.core import units

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures"
WIDTH, LABELS, ROW = 720, 190, 30
MODEL, CHIPS = "meta-llama/Llama-3.1-8B", ("h100-sxm", "rtx-4090", "apple-m4-max", "l4")
CSV = ROOT / "benchmarks" / "winner-vs-baseline-xeon-ort1.31.1-2026-11-22.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, with its interval and the text to its right."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None


def bars(title: str, rows: list[Bar]) -> str:
    """SVG of horizontal bars from zero, with intervals as thin lines."""
    most = max(row.high or row.value for row in rows)
    scale = (WIDTH - LABELS - 200) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * len(rows) + 40}" '
        'font-family="sans-serif" font-size="13" fill="#667">',
        f'<text x="0" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for i, row in enumerate(rows):
        y = 34 + ROW * i
        end = LABELS + scale * (row.high or row.value) + 8
        parts.append(f'<text x="{LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>')
        parts.append(f'<rect x="{LABELS}" y="{y}" width="{scale * row.value:.1f}" height="18" fill="#4c78a8"/>')
        if row.low is not None and row.high is not None:
            a, b = LABELS + scale * row.low, LABELS + scale * row.high
            parts.append(f'<path d="M{a:.1f} {y + 9}H{b:.1f}" stroke="#f58518" stroke-width="3"/>')
        parts.append(f'<text x="{end:.1f}" y="{y + 14}">{escape(row.text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def estimates() -> str:
    """Time per token of one model on four chips, with 90 % intervals."""
    rows = []
    for answer in chipwise.estimate(MODEL, devices=list(CHIPS)):
        estimate = answer.to_dict()["estimate"]
        found = estimate["metrics"]["tpot_p50"]
        rows.append(
            Bar(
                label=f"{answer.device}, {estimate['weights']}",
                value=found["value"], low=found["low"], high=found["high"],
                text=units.span(found["value"], found["low"], found["high"], "time"),
            )
        )  # fmt: skip
    return bars(f"{MODEL}: time per output token, with 90 % intervals", rows)


def explanation() -> str:
    """The parts of a decode step of GPT-2 on an L4."""
    decode = chipwise.explain("gpt2", device="l4").to_dict()["phases"][1]
    rows = [
        Bar(label=part["name"], value=part["seconds"], text=units.show(part["seconds"], "time"))
        for part in decode["parts"]
    ]
    return bars("gpt2 on l4: where the time of a token goes", rows)


def search() -> str:
    """Time per token of winner and reference design at about equal loss, by seed."""
    with CSV.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    rows = [
        Bar(
            label=f"{'winner' if row['contender'] == 'winner' else 'reference'}, seed {row['seed']}",
            value=float(row["latency_p50_s"]),
            text=f"{units.show(float(row['latency_p50_s']), 'time')}, {float(row['bits_per_byte']):.3f} bits per byte",
        )
        for row in sorted(found, key=lambda row: (row["contender"] != "winner", row["seed"]))
    ]
    return bars("a search on one CPU core: measured time per token", rows)


def pictures() -> dict[Path, str]:
    """Text of each picture by its path."""
    return {FOLDER / f"{draw.__name__}.svg": draw() for draw in (estimates, explanation, search)}
