"""Measured language models on Qualcomm's chips, as runs of one user: a table of AI Hub's figures.

Columns: row_id, component, precision, device, runtime, context, ttft_min_ms, ttft_max_ms, tokens_per_s. A compiled
graph computes over its whole context at every step; Genie itself keeps graphs of several lengths and takes the shortest
that holds what was said. The shortest time to a first token is that of a piece of a prompt, the longest of a full one.

GenieX runs llama.cpp as well. Its rows do not name the part of the chip: of one model and context there are three,
taken as those of CPU, GPU and NPU in this order (the first decodes fastest on laptops, the third reads prompts
fastest).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from chipwise.hardware import datasheet
from chipwise_fitting.edge_runs import Run, asked
from chipwise_fitting.table_runs import number, packed_rows

TABLE = "phones_llm.csv.gz"
NEEDED = ("row_id", "component", "precision", "device", "runtime", "context", "tokens_per_s")
PIECE = 128.0  # tokens of a prompt that a graph takes at once
SHORTEST = 512.0  # context of Genie's shortest graph
GGUF = "geniex_llamacpp"
PARTS = ("cpu", "gpu", "npu")
REPEATED = ("Dragonwing Q-8750", "Dragonwing IQ-X7181", "SA8255P ADP", "SA8650P ADP")
"""Devices with the chip of another one of the table: their figures are the other's."""
CHIPS = {"Samsung Galaxy S26": "snapdragon-8-elite-gen5"}
"""Chips of phones that are sold with one of two."""
CONTRADICTED = {("genie", "Snapdragon X Elite CRD")}
"""Genie's graphs decode there at 40 % of the speed of GenieX, which runs the same files; everywhere else at 120 %."""


def read_npu_runs(folder: Path) -> list[Run]:
    """Decode steps and prompts of the folder's table; none where it has no such table.

    Raises:
        SpecError: The table lacks a column.
    """
    table = folder / TABLE
    if not table.exists():
        return []
    rows = packed_rows(table, NEEDED)
    parts = parts_of(rows)
    return [run for row in rows for run in _runs(row, parts.get(row["row_id"]))]


def parts_of(rows: list[dict[str, str]]) -> dict[str, str]:
    """The part of the chip on which each row of GenieX with llama.cpp ran, where a setting has one row for each."""
    settings: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row["runtime"] == GGUF:
            key = tuple(row[name] for name in ("component", "precision", "device", "context"))
            settings.setdefault(key, []).append(row["row_id"])
    found = (zip(ids, PARTS, strict=True) for ids in settings.values() if len(ids) == len(PARTS))
    return {row: part for each in found for row, part in each}


def _runs(row: Mapping[str, str], part: str | None) -> Iterator[Run]:
    device, runtime, gguf = row["device"], row["runtime"], row["runtime"] == GGUF
    if (gguf and part is None) or device in REPEATED or (runtime, device) in CONTRADICTED or "SSD" in row["component"]:
        return
    device = CHIPS.get(device, device)
    if part == "gpu" and not any(each.dtypes() for each in datasheet.load(f"{device}:gpu").engines):
        return  # its rate is not published, so that it says nothing of others
    context = number(row["context"]) or 0.0
    named = {"device": device, "model": row["component"], "quant": row["precision"], "runtime": runtime, "date": "2026"}
    named["variant"] = part or "npu"
    if part == "gpu":
        named["backend"] = "gpu"
    rate = number(row["tokens_per_s"])
    timed = []
    if rate:
        timed.append(("decode", 1.0, 1 / rate, (1, round(SHORTEST if runtime == "genie" else context))))
    ends = [(PIECE, row.get("ttft_min_ms")), (context, row.get("ttft_max_ms"))]
    for tokens, told in ends[:1] if gguf else ends:  # the longest is there the shortest times the number of pieces
        if milliseconds := number(told):
            timed.append(("prefill", tokens, milliseconds / 1e3, (round(tokens), 0)))
    for phase, tokens, seconds, step in timed:
        run = Run(
            row_id=f"{row['row_id']}:{round(tokens)}" if phase == "prefill" else row["row_id"],
            phase="decode" if phase == "decode" else "prefill",
            subset=f"{(part or 'npu').upper()} in {'llama.cpp' if gguf else runtime.replace('_qairt', '')}",
            measured_s=seconds,
            tokens=tokens,
        )
        yield asked(run, named, *step)
