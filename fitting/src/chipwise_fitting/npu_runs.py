"""Measured language models on the NPUs of Qualcomm's chips, as runs of one user: a table of AI Hub's figures.

Columns: row_id, component, precision, device, runtime, context, ttft_min_ms, ttft_max_ms, tokens_per_s. A compiled
graph computes over its whole context at every step; Genie itself keeps graphs of several lengths and takes the shortest
that holds what was said. The shortest time to a first token is that of a piece of a prompt, the longest of a full one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from chipwise_fitting.edge_runs import Run, asked
from chipwise_fitting.table_runs import number, packed_rows

TABLE = "phones_llm.csv.gz"
NEEDED = ("row_id", "component", "precision", "device", "runtime", "context", "tokens_per_s")
PIECE = 128.0  # tokens of a prompt that a graph takes at once
SHORTEST = 512.0  # context of Genie's shortest graph
STACKS = {"genie": "genie", "geniex_qairt": "geniex"}
DEVICES = {
    "Snapdragon X2 Elite CRD": "snapdragon-x2-elite",
    "Snapdragon X Elite CRD": "snapdragon-x-elite",
    "Samsung Galaxy S26": "snapdragon-8-elite-gen5",
    "Samsung Galaxy S25": "snapdragon-8-elite",
    "Dragonwing IQ-9075 EVK": "qcs9075",
}
"""Chips by device; a second device with the same chip repeats the first one's figures."""
CONTRADICTED = {("genie", "snapdragon-x-elite")}
"""Genie's graphs decode there at 40 % of the speed of GenieX, which runs the same files; everywhere else at 120 %."""
MODELS = {
    "Falcon3-7B-Instruct": "tiiuae/Falcon3-7B-Instruct",
    "Llama-v3-8B-Instruct": "meta-llama/Meta-Llama-3-8B-Instruct",
    "Llama-v3-ELYZA-JP-8B": "meta-llama/Meta-Llama-3-8B-Instruct",
    "Llama3-TAIDE-LX-8B-Chat-Alpha1": "meta-llama/Meta-Llama-3-8B-Instruct",
    "Llama-SEA-LION-v3.5-8B-R": "meta-llama/Llama-3.1-8B-Instruct",
    "Llama-v3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "Llama-v3.2-1B-Instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "Llama-v3.2-3B-Instruct": "meta-llama/Llama-3.2-3B-Instruct",
    "Mistral-7B-Instruct-v0.3": "mistralai/Mistral-7B-Instruct-v0.2",
    "Phi-3.5-Mini-Instruct": "microsoft/Phi-3.5-mini-instruct",
    "Qwen2-7B-Instruct": "Qwen/Qwen2-7B-Instruct",
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B",
    "Qwen3-1.7B": "Qwen/Qwen3-1.7B",
    "Qwen3-4B": "Qwen/Qwen3-4B",
    "Qwen3-4B-Instruct-2507": "Qwen/Qwen3-4B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "SmolLM2-1.7B-Instruct": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
}
"""Language models by component; fine-tuned ones go by their base. Those behind a vision tower are left out."""


def read_npu_runs(folder: Path) -> list[Run]:
    """Decode steps and prompts of the folder's table; none where it has no such table.

    Raises:
        SpecError: The table lacks a column.
    """
    table = folder / TABLE
    if not table.exists():
        return []
    return [run for row in packed_rows(table, NEEDED) for run in _runs(row)]


def _runs(row: Mapping[str, str]) -> Iterator[Run]:
    device, model, stack = DEVICES.get(row["device"]), MODELS.get(row["component"]), STACKS.get(row["runtime"])
    if (
        device is None
        or model is None
        or stack is None
        or row["precision"] != "w4a16"
        or (stack, device) in CONTRADICTED
    ):
        return
    context = number(row["context"]) or 0.0
    named = {"device": device, "model": model, "quant": "w4a16", "runtime": stack, "variant": "npu", "date": "2026"}
    rate = number(row["tokens_per_s"])
    timed = []
    if rate:
        timed.append(("decode", 1.0, 1 / rate, (1, round(SHORTEST if stack == "genie" else context))))
    for tokens, told in ((PIECE, row.get("ttft_min_ms")), (context, row.get("ttft_max_ms"))):
        if milliseconds := number(told):
            timed.append(("prefill", tokens, milliseconds / 1e3, (round(tokens), 0)))
    for phase, tokens, seconds, step in timed:
        run = Run(
            row_id=f"{row['row_id']}:{round(tokens)}" if phase == "prefill" else row["row_id"],
            phase="decode" if phase == "decode" else "prefill",
            subset=f"NPU in {'Genie' if stack == 'genie' else 'GenieX'}",
            measured_s=seconds,
            tokens=tokens,
        )
        yield asked(run, named, *step)
