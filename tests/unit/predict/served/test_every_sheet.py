"""Every data sheet prices models in every runtime that it lists: an answer, or one line that says why there is none."""

from __future__ import annotations

import itertools
import math

from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtimes_for
from chipwise.predict.served.table import estimate_rows

MODELS = (
    "openai-community/gpt2",
    "Qwen/Qwen2.5-0.5B",
    "HuggingFaceTB/SmolLM2-135M",
    "meta-llama/Llama-3.2-1B",
    "google/gemma-3-1b-pt",
    "LiquidAI/LFM2-350M",
    "Qwen/Qwen3-0.6B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-20b",
)
REFUSALS = ("too much", "throughput", "does not")


def test_all_sheets_price_models_in_every_runtime() -> None:
    """Every second pair of a sheet and a runtime, at least one of each sheet, with one of ten models in turn."""
    turn = itertools.cycle(MODELS)
    listed = {name: runtimes_for(datasheet.load(name)) for name in datasheet.names()}
    assert all(listed.values()), [name for name, runtimes in listed.items() if not runtimes]
    pairs = [
        (name, runtime)
        for number, (name, runtimes) in enumerate(listed.items())
        for runtime in runtimes[number % 2 :: 2] or runtimes[:1]
    ]
    rows = [
        {"model": next(turn), "device": name, "runtime": runtime, "isl": "128", "osl": "16", "batch": "1"}
        for name, runtime in pairs
    ]
    assert len(rows) > 1.5 * len(datasheet.names())
    for row in estimate_rows(rows):
        if row["error"]:
            assert any(word in str(row["error"]) for word in REFUSALS), row
            assert "\n" not in str(row["error"])
            continue
        low, middle, high = (float(str(row[name])) for name in ("low_s", "tpot_s", "high_s"))
        assert 0 < low < middle < high < math.inf, row
        assert 0 < float(str(row["ttft_s"])) < math.inf, row
