import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.design.prices import lookup
from chipwise.design.prices.price_table import OperatorPricer, PriceTable, ProfilePricer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import memory_parts
from support.machines import round_machine
from support.models import kv_cache_bytes

WORKLOAD = Workload(prompt_tokens=16, new_tokens=8)


class CountingPricer(OperatorPricer):
    """Prices that are plain counts, so that a sum over a table can be held against a sum over a graph."""

    def op_columns(self, op):
        work = op.work()
        return np.array([1.0, work.flops, work.bytes, work.weight_bytes])

    def latencies_s(self, prefill, decode, *, logits):
        return prefill.sum(axis=1) + logits, decode.sum(axis=1) + logits

    def stored_bytes(self, design, workload):
        matrices = memory_parts(design, workload).matrices
        held = sum(rate * matrices.get(name, 0) for name, rate in {"fp32": 1.0, "int8": 3.0, "int4": 7.0}.items())
        return kv_cache_bytes(design.arch, workload.total_tokens) + 4.0 * design.arch.parameters() + held

    def activation_bytes(self, layer, design, workload):
        if layer is None:
            return float(design.arch.vocab_size * 3)
        widths = (block.heads if isinstance(block, Attention) else block.width for block in layer.blocks())
        return float(design.arch.d_model * max(widths))

    def base_bytes(self):
        return 1e6


FORMATS = ["int4", "fp32", "int8"]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("conv", [["none"], ["attention", "none", "both"]])
@pytest.mark.parametrize(
    ("layers", "layer_weights"),
    [
        ("each", None),
        ("alike", None),
        ("alternating", None),
        ("thirds", None),
        ({"attention": "thirds", "ffn_width": "alternating"}, None),
        ("each", FORMATS),
        ({"attention": "thirds", "layer_weights": "alternating"}, FORMATS),
    ],
)
def test_a_gather_and_a_sum_equal_the_whole_graph(layers, conv, fused, layer_weights, monkeypatch) -> None:
    if not fused:
        monkeypatch.setattr(lookup, "_FUSED_BYTES", 0)
    spec = {
        "d_model": [64, 96],
        "depth": [1, 2, 4],
        "vocab_size": [256, 512],
        "layer": {
            "heads": [1, 2, 4],
            "kv_heads": [1, 2],
            "ffn": ["relu", "gelu", "silu", "geglu", "swiglu"],
            "ffn_width": [32, 80],
            **({} if layer_weights is None else {"weights": layer_weights}),
        },
        "head_size": [16, 32],
        "tie_embeddings": [True, False],
        "weights": ["fp32", "int8", "int4"],
        "sharing": ["none", "pairs"],
        "layers": layers,
        "conv": conv,
        "conv_taps": 3,
        "conditions": [
            {"when": {"heads": 4}, "only": {"kv_heads": 2}},
            {"when": {"weights": "int4"}, "only": {"depth": 2}},
        ],
    }
    space = SearchSpace(build(SpaceSpec, spec))
    rows = space.sample(300, np.random.default_rng(0))
    pricer = CountingPricer()
    costs = PriceTable(space, WORKLOAD, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        for phase, priced in ((Phase.PREFILL, costs.ttft_s), (Phase.DECODE, costs.tpot_s)):
            whole = sum(pricer.op_columns(item.op) for item in lower(design, WORKLOAD, phase))
            assert priced[i] == pytest.approx(whole.sum() + design.arch.vocab_size, rel=1e-12)
        assert costs.parameters[i] == design.arch.parameters()
        widest = max(pricer.activation_bytes(layer, design, WORKLOAD) for layer in (None, *design.arch.layers))
        assert costs.peak_memory_bytes[i] == 1e6 + pricer.stored_bytes(design, WORKLOAD) + widest


@pytest.mark.parametrize("conv", [["none"], ["both", "attention"]])
def test_layers_of_several_formats_are_priced_as_the_calibrated_machine_prices_the_whole(conv) -> None:
    """Streamed bytes of each format go by the whole pass's working set; the runtime holds each in its way."""
    spec = {
        "d_model": [64, 96],
        "depth": [1, 3, 4],
        "vocab_size": [256, 512],
        "layer": {
            "heads": [1, 2],
            "kv_heads": [1, 2],
            "ffn": ["relu", "swiglu"],
            "ffn_width": [32, 80],
            "weights": ["fp32", "int8", "int4"],
        },
        "tie_embeddings": [True, False],
        "weights": ["int8", "fp32", "int4"],
        "sharing": ["none", "pairs"],
        "layers": {"attention": "alternating", "layer_weights": "each"},
        "conv": conv,
    }
    space = SearchSpace(build(SpaceSpec, spec))
    rows = space.sample(150, np.random.default_rng(0))
    profile = round_machine()
    costs = PriceTable(space, WORKLOAD, ProfilePricer(profile))(rows)
    mixed = 0
    for i, row in enumerate(rows):
        design = space.design(row)
        mixed += len(set(design.formats.layers)) > 1
        graphs = [lower(design, WORKLOAD, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
        whole = estimate(design, *graphs, WORKLOAD, profile)
        assert costs.ttft_s[i] == pytest.approx(whole.ttft_s, rel=1e-9)
        assert costs.tpot_s[i] == pytest.approx(whole.tpot_s, rel=1e-9)
        assert costs.peak_memory_bytes[i] == pytest.approx(whole.peak_memory_bytes, rel=1e-12)
    assert mixed > 50


def test_no_rows_have_no_prices() -> None:
    spec = {
        "d_model": [64],
        "depth": [1, 2],
        "vocab_size": [256],
        "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [32]},
    }
    space = SearchSpace(build(SpaceSpec, spec))
    costs = PriceTable(space, WORKLOAD, CountingPricer())(space.sample(3, np.random.default_rng(0))[:0])
    assert costs.tpot_s.shape == costs.parameters.shape == (0,)
