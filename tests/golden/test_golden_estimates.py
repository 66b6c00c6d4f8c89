"""Per-operator numbers of 8 models on 6 devices: a change that moves one says which, and by how much.

The numbers are no truths, only what was predicted when they were last looked at. Where a model was improved, run
``pytest tests/golden --update-golden`` and put what moved under "Numbers moved" in CHANGELOG.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chipwise.errors import ChipwiseError
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.request import Request

KEPT = Path(__file__).parent / "estimates.json"
MODELS = (
    "openai-community/gpt2",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen3-32B",
    "google/gemma-3-12b-pt",
    "mistralai/Mixtral-8x7B-v0.1",
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)
DEVICES = ("a100-sxm-80gb", "h100-sxm", "b200-sxm", "l40s", "mi300x", "apple-m4")
TOLERANCE = 1e-3


def numbers(model: str, device: str) -> dict[str, float]:
    """Seconds of every operator and their sum, or the first words of the error."""
    request = Request(
        model=model, deployment=Deployment(device=device, weights="own"), batch=8, prompt_tokens=2048, new_tokens=256
    )
    try:
        found = estimate_of(cost_of(request), 0)
    except ChipwiseError as error:
        return {f"error: {str(error)[:60]}": 0.0}
    kept = {"ttft": found.ttft_s, "tpot": found.tpot_s}
    for phase, costs in (("prefill", found.prefill), ("decode", found.decode)):
        for cost in costs:
            key = f"{phase}: {cost.place}"
            kept[key] = kept.get(key, 0.0) + cost.latency_s
    return {name: float(f"{value:.6g}") for name, value in kept.items()}


@pytest.mark.parametrize("model", MODELS)
def test_numbers_that_were_looked_at(model: str, update_golden: bool) -> None:
    golden = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    moved = []
    for device in DEVICES:
        case = f"{model} on {device}"
        now, then = numbers(model, device), golden.get(case, {})
        for name in sorted({*now, *then}):
            old, new = then.get(name), now.get(name)
            if old is None or new is None or abs(new - old) > TOLERANCE * abs(old):
                change = f"{new / old - 1:+.1%}" if old and new else "new" if new is not None else "gone"
                moved.append(f"{case}, {name}: {old} -> {new} ({change})")
        golden[case] = now
    if update_golden:
        print("\n".join(moved))
        KEPT.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")
        return
    assert not moved, f"{len(moved)} numbers moved:\n" + "\n".join(moved[:40])
