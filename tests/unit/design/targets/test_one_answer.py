"""Estimate, explain and search state the same P99s and gaps between tokens for the same question."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise import api
from chipwise.design.run.spec import run_spec
from chipwise.design.targets.sheet import sheet_target
from chipwise.model.space.search_space import SearchSpace


@pytest.mark.parametrize(
    ("device", "batch", "p99"), [("h100-sxm", 16, None), ("raspberry-pi-5", 1, None), ("raspberry-pi-5", 1, 90)]
)
def test_estimate_explain_and_search_state_the_same(device: str, batch: int, p99: int | None) -> None:
    """P99s and gaps of the same design for the same requests; estimate and explain also name one price."""
    spec = run_spec(
        {
            "name": "toy",
            "workload": {"prompt_tokens": {"p50": 64, "p99": p99} if p99 else 64, "new_tokens": 32, "batch": batch},
            "target": {"device": device},
            "constraints": {"tpot_p99": "<= 1 s", "mfu": ">= 0.001 %", "mbu": ">= 0.001 %"},
            "space": {
                "d_model": [64], "depth": [2], "vocab_size": [512], "head_size": [32], "weights": ["fp32", "int8"],
                "layer": {"heads": [2], "kv_heads": [2], "ffn": ["swiglu"], "ffn_width": [64, 256]}, "max_tokens": 128,
            },
            "data": {"source": "files", "paths": ["x.txt"]},
        },
        file="toy.yaml",
    )  # fmt: skip
    space = SearchSpace(spec.space)
    target = sheet_target(spec, space)
    row = space.sample(1, np.random.default_rng(0))
    design = space.design(row[0])
    asked = target._pricer.request(design)
    sizes = {"device": device, "runtime": asked.deployment.runtime, "weights": asked.deployment.weights}
    sizes |= {"prompt": 64, "new": 32, "batch": batch}
    estimated = api.estimate(asked.model, prompt_p99=p99, **sizes)
    explained = api.explain(asked.model, **sizes)
    searched, by_row = target.predict(design), target.metrics(row)
    for name in ("ttft_p99", "tpot_p99", "itl_p50", "itl_p99"):
        found = estimated.metrics[name]
        assert p99 or explained.estimate.metrics[name] == found
        assert searched[name] == pytest.approx([found.value, found.low, found.high])
        assert by_row[name][0] == pytest.approx(found.value, rel=0.03)
    for name, phase in (("mfu", "prefill"), ("mbu", "decode")):
        value, low, high = searched[name]
        assert value == pytest.approx(getattr(estimated, name)[phase])
        assert low is None or low < value < high <= 1
        assert by_row[name][0] == pytest.approx(value, rel=0.1)
    assert searched["peak_memory"][0] == estimated.peak_memory_bytes
    price = estimated.metrics.get("usd_per_1k_tokens")
    assert explained.estimate.metrics.get("usd_per_1k_tokens") == price
    assert (price is None) == ("usd_per_1k_tokens" not in searched)


def test_estimate_simulate_and_plan_state_the_same_gap_between_tokens_and_price() -> None:
    """Two replays of one load agree; their P99 gap is in the interval that measured runs give ``estimate``."""
    sizes = {"prompt": 1500, "new": 250}
    load = {**sizes, "rate": "8/s", "requests": 400}
    option = api.plan("Qwen/Qwen3-8B", devices=["h100-sxm"], tp=[1], weights=["bf16"], **load).best
    assert option.devices == 1
    simulated = api.simulate("Qwen/Qwen3-8B", device="h100-sxm", weights="bf16", seeds=1, **load)
    batch = round(option.in_flight)
    estimated = api.estimate("Qwen/Qwen3-8B", device="h100-sxm", weights="bf16", batch=batch, **sizes)
    for name in ("itl_p50", "itl_p99", "ttft_p99", "tpot_p99"):
        assert option.times[name].value == pytest.approx(simulated.times[name].value, rel=1e-6), name
        known = estimated.metrics[name]
        assert known.low < option.times[name].value < known.high, name
    assert option.times["itl_p99"].value == pytest.approx(estimated.metrics["itl_p99"].value, rel=0.35)
    assert option.usd_per_h == simulated.usd_per_h
    assert option.usd_per_million_output_tokens == pytest.approx(simulated.usd_per_million_output_tokens, rel=0.01)
