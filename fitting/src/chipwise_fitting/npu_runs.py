"""Reads AI Hub's table of language models on Qualcomm's chips, as runs with one user.

Columns: row_id, component, precision, device, runtime, context, ttft_min_ms, ttft_max_ms, tokens_per_s. A compiled
graph computes over its whole context at every step; Genie has graphs of several lengths and takes the shortest one that
holds the conversation. Prompts are processed in pieces. The shortest TTFT belongs to a prompt of one piece, the longest
to a prompt that fills the context.

GenieX also runs llama.cpp. Its rows for llama.cpp do not say whether the CPU, GPU or NPU ran the model. There are three
such rows for each model and context; they are taken to be CPU, GPU and NPU in this order (the first row has the fastest
decoding on laptops, the third the fastest prompts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from chipwise.hardware import datasheet
from chipwise_fitting.edge_runs import Run, asked
from chipwise_fitting.table_runs import number, packed_rows

TABLE = "phones_llm.csv.gz"
NEEDED = ("row_id", "component", "precision", "device", "runtime", "context", "tokens_per_s")
PIECE = 128.0  # prompt tokens that a graph processes at once
SHORTEST = 512.0  # context of Genie's shortest graph
GGUF = "geniex_llamacpp"
PARTS = ("cpu", "gpu", "npu")
REPEATED = ("Dragonwing Q-8750", "Dragonwing IQ-X7181", "SA8255P ADP", "SA8650P ADP")
"""Devices that repeat the figures of another device in the table, which has the same chip."""
CHIPS = {"Samsung Galaxy S26": "snapdragon-8-elite-gen5"}
"""The chip that is assumed for phones that are sold with either of two chips."""
CONTRADICTED = {("genie", "Snapdragon X Elite CRD")}
"""Pairs of runtime and device that are left out: on these devices Genie decodes at 40 % of the speed of
GenieX, which runs the same files; on all other devices at 120 %."""


def read_npu_runs(folder: Path) -> list[Run]:
    """Reads decode steps and prompts from the folder's table; none if it has no such table.

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
    """Returns the part of the chip that ran each row of GenieX with llama.cpp, for settings with three rows."""
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
        return  # its rate is not published, so nothing about other GPUs can be learnt from it
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
    for tokens, told in (
        ends[:1] if gguf else ends
    ):  # in those rows the longest is the shortest times the number of pieces
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
