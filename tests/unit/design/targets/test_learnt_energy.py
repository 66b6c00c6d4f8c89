"""What measured joules teach a data sheet's target: single designs and screening follow alike."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.run.spec import run_spec
from chipwise.design.targets.sheet import sheet_target
from chipwise.model.space.search_space import SearchSpace

RUN = {
    "name": "board",
    "target": {"device": "jetson-orin-nano", "runtime": "llama.cpp"},
    "workload": {"prompt_tokens": 64, "new_tokens": 32},
    "constraints": {"power": "<= 12 W"},
    "space": {
        "d_model": [128, 256, 384],
        "depth": [2, 4, 8],
        "vocab_size": [1024],
        "head_size": [32],
        "layer": {"heads": [4], "kv_heads": [2], "ffn": ["swiglu"], "ffn_width": [256, 1024]},
        "weights": ["int8"],
        "max_tokens": 256,
    },
    "data": {"source": "medical-definitions"},
    "budget": {"cpu": "5 min"},
}


def test_energy_follows_what_was_measured() -> None:
    """Times twice and joules three times as predicted: each prediction of a single design follows most of the way, and
    screening, which prices whole tables, says the same as single designs do, before and after."""
    run = run_spec(RUN, file="run.yaml")
    space = SearchSpace(run.space)
    target = sheet_target(run, space)
    rows = space.canonical(np.unique(space.sample(24, np.random.default_rng(0)), axis=0))
    designs = [space.design(row) for row in rows]

    def both() -> tuple[np.ndarray, np.ndarray]:
        single = np.array([target.predict(design)["joules_per_token"][0] for design in designs])
        return single, target.metrics(rows)["joules_per_token"]

    single, screened = both()
    assert np.exp(np.abs(np.log(screened / single))).max() < 1.25
    known = [target.predict(design) for design in designs[::2]]
    factors = {"ttft_p50": 2.0, "tpot_p50": 2.0, "joules_per_token": 3.0, "peak_memory": 1.0}
    taught = [
        (design, {metric: factor * costs[metric][0] for metric, factor in factors.items()})
        for design, costs in zip(designs[::2], known, strict=True)
    ]
    target.learn(taught)
    after, screened_after = both()
    assert np.median(after / single) == pytest.approx(3.0, rel=0.1)
    assert np.exp(np.abs(np.log(screened_after / after))).max() < 1.25
    watts = target.predict(designs[0])["power"][0]
    costs = target.predict(designs[0])
    request_s = costs["ttft_p50"][0] + 31 * costs["tpot_p50"][0]
    assert watts == pytest.approx(costs["joules_per_token"][0] * 32 / request_s)
    target.learn([])
    assert both()[0] == pytest.approx(single)
    assert both()[1] == pytest.approx(screened)
