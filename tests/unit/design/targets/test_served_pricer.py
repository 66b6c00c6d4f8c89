"""A table's price of a design is its estimate: a gather and a sum equal the model priced whole."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.design.prices.price_table import PriceTable
from chipwise.design.targets.served_pricer import ServedPricer
from chipwise.hardware import datasheet
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.request import Request

FIELDS = {
    "d_model": [64, 256],
    "depth": [1, 3],
    "vocab_size": [512, 8192],
    "layer": {"heads": [2, 4], "kv_heads": [1, 2], "ffn": ["swiglu", "relu"], "ffn_width": [64, 512]},
    "weights": ["int8", "bf16"],
    "max_tokens": 512,
}
SPACE = SearchSpace(build(SpaceSpec, FIELDS))
MIXED = SearchSpace(build(SpaceSpec, {**FIELDS, "layer": {**FIELDS["layer"], "weights": ["int4", "int8", "bf16"]}}))

BARE_LAYER = FIELDS["layer"] | {"heads": [2, "none", 4], "ffn": ["swiglu", "relu-g4", "swiglu-g2", "none"]}
BARE = SearchSpace(build(SpaceSpec, {**FIELDS, "layer": BARE_LAYER, "depth": [3, 5]}))


@pytest.mark.parametrize(
    ("device", "runtime", "batch", "tp"),
    [
        ("apple-m4", "llama.cpp", 1, 1),
        ("snapdragon-8-elite", "llama.cpp", 1, 1),
        ("rtx-4090", "llama.cpp", 1, 1),
        ("h100-sxm", "vllm", 1, 1),
        ("h100-sxm", "vllm", 16, 2),
        ("h100-sxm", "sglang", 32, 1),
        ("jetson-orin-nano", "onnxruntime", 1, 1),
        ("xeon-8480-plus:1-core", "onnxruntime", 1, 1),
        ("raspberry-pi-5", "onnxruntime", 4, 1),
    ],
)
def test_rows_of_a_table_cost_what_their_designs_are_estimated_to(device, runtime, batch, tp) -> None:
    check(SPACE, device, runtime, batch=batch, tp=tp)


@pytest.mark.parametrize(
    ("device", "runtime"), [("apple-m4", "llama.cpp"), ("h100-sxm", "vllm"), ("raspberry-pi-5", "onnxruntime")]
)
def test_layers_with_formats_of_their_own_cost_what_the_whole_design_is_estimated_to(device, runtime) -> None:
    check(MIXED, device, runtime)


@pytest.mark.parametrize(
    ("device", "runtime", "batch"),
    [("h100-sxm", "vllm", 16), ("snapdragon-8-elite", "llama.cpp", 1), ("xeon-8480-plus:1-core", "onnxruntime", 1)],
)
def test_layers_without_a_block_cost_what_the_whole_design_is_estimated_to(device, runtime, batch) -> None:
    check(BARE, device, runtime, batch=batch)


def check(space: SearchSpace, device: str, runtime: str, *, batch: int = 1, tp: int = 1) -> None:
    sheet = datasheet.load(device)
    workload = Workload(prompt_tokens=64, new_tokens=64, batch=batch)
    pricer = ServedPricer(
        Request(
            model="",
            deployment=Deployment(device=sheet, runtime=runtime, tp=tp),
            batch=batch,
            prompt_tokens=64,
            new_tokens=64,
        ),
        sheet,
    )
    rows = space.sample(12, np.random.default_rng(0))
    costs = PriceTable(space, workload, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        whole = estimate_of(cost_of(pricer.request(design)), 0)
        assert costs.ttft_s[i] == pytest.approx(whole.ttft_s, rel=1e-6)
        assert costs.tpot_s[i] == pytest.approx(whole.tpot_s, rel=1e-6)
        assert costs.peak_memory_bytes[i] == pytest.approx(whole.peak_memory_bytes, rel=1e-6)
        assert costs.parameters[i] == design.arch.parameters()
