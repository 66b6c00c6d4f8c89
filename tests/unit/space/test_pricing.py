import numpy as np
import pytest

from chipwise.blocks.lowering import lower
from chipwise.core.files import build
from chipwise.ops import Phase, Workload
from chipwise.space import SearchSpace, SpaceSpec
from chipwise.space.pricing import PriceTable

WORKLOAD = Workload(prompt_tokens=16, new_tokens=8)


class CountingPricer:
    """Prices that are plain counts, so that a sum over a table can be held against a sum over a graph."""

    def op_columns(self, op):
        work = op.work()
        return np.array([1.0, work.flops, work.bytes])

    def memory_columns(self, design, workload):
        return np.array([design.arch.kv_cache_bytes(workload.total_tokens), design.arch.parameters()])

    def latency_s(self, columns, phase):
        return columns.sum(axis=1)

    def peak_memory_bytes(self, columns):
        return columns[:, 0]


@pytest.mark.parametrize("layers", ["each", "alike"])
def test_a_gather_and_a_sum_equal_the_whole_graph(layers) -> None:
    spec = {
        "d_model": [64, 96],
        "depth": [1, 2, 4],
        "vocab_size": [256, 512],
        "layer": {
            "heads": [1, 2, 4],
            "kv_heads": [1, 2],
            "ffn": ["relu", "gelu", "silu", "geglu", "swiglu"],
            "ffn_width": [32, 80],
        },
        "head_size": [16, 32],
        "tie_embeddings": [True, False],
        "weights": ["fp32", "int8", "int4"],
        "sharing": ["none", "pairs"],
        "layers": layers,
    }
    space = SearchSpace(build(SpaceSpec, spec))
    rows = space.sample(300, np.random.default_rng(0))
    pricer = CountingPricer()
    costs = PriceTable(space, WORKLOAD, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        for phase, priced in ((Phase.PREFILL, costs.ttft_s), (Phase.DECODE, costs.tpot_s)):
            whole = sum(pricer.op_columns(item.op).sum() for item in lower(design, WORKLOAD, phase))
            assert priced[i] == pytest.approx(whole, rel=1e-12)
        assert costs.parameters[i] == design.arch.parameters()
        assert costs.peak_memory_bytes[i] == design.arch.kv_cache_bytes(WORKLOAD.total_tokens)
