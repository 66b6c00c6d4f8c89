"""The short convolution by pencil: what it adds, what it keeps, what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.conv.module import ShortConv
from chipwise.model.kinds.text.lower import last_mixing
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from support.models import kv_cache_bytes

LAYER = Layer(attention=Attention(heads=2, kv_heads=1, head_size=16), ffn=FeedForward(width=24))


def arch(*layers: Layer) -> ArchSpec:
    return ArchSpec(name="m", stem=Tokens(vocab_size=20), d_model=16, layers=layers, max_tokens=64)


def test_each_channel_adds_its_own_past() -> None:
    """Weights (2, 3) and (5, 7) of two channels: 3 times now and 2 times before, 7 and 5, on top of what came in."""
    conv = ShortConv(2, 2)
    conv.weight.data = torch.tensor([[[2.0, 3.0]], [[5.0, 7.0]]])
    x = torch.tensor([[[1.0, 10.0], [4.0, 20.0]]])
    y, kept = conv(x, None)
    assert y.tolist() == [[[1 + 3.0, 10 + 70.0], [4 + 12.0 + 2.0, 20 + 140.0 + 50.0]]]
    assert kept.tolist() == [[[4.0, 20.0]]]
    assert conv(x[:, 1:], x[:, :1])[0].tolist() == [y[0, 1:].tolist()]


def test_parameters_and_state_are_taps_times_width() -> None:
    plain, both = arch(LAYER), arch(replace(LAYER, attention_conv=4, ffn_conv=3))
    assert both.parameters() - plain.parameters() == (4 + 3) * 16
    assert kv_cache_bytes(both, 10, batch=2) - kv_cache_bytes(plain, 10, batch=2) == 2 * (3 + 2) * 16 * 4


def test_a_step_costs_two_flops_a_tap_and_channel() -> None:
    graph = lower(
        Design(arch=arch(replace(LAYER, attention_conv=4))), Workload(prompt_tokens=5, new_tokens=2), Phase.DECODE
    )
    (conv,) = [placed.op for placed in graph if isinstance(placed.op, ConvOp)]
    assert conv.work().flops == 2 * 4 * 16


def test_all_positions_go_on_up_to_the_last_convolution() -> None:
    """Behind the last block that mixes, one position is left: 2 gathers of a prompt's 5 rows, before its products."""
    first, last = replace(LAYER, attention_conv=4), replace(LAYER, ffn_conv=2)
    assert (last_mixing(arch(first, LAYER)), last_mixing(arch(LAYER, last))) == ((1, "attention"), (1, "ffn"))
    graph = lower(Design(arch=arch(last)), Workload(prompt_tokens=5, new_tokens=2), Phase.PREFILL)
    rows = {placed.place: placed.op.m for placed in graph if hasattr(placed.op, "m")}
    assert rows["layers.0.attention.out"] == 5
    assert rows["layers.0.ffn.up"] == rows["layers.0.ffn.down"] == 1
    cuts = [
        placed.place for placed in graph if isinstance(placed.op, EmbeddingOp) and placed.place.startswith("layers")
    ]
    assert cuts == ["layers.0.ffn.last_stream", "layers.0.ffn.last"]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"attention_conv": 1}, "at least 2"), ({"ffn_conv": -1}, "at least 2"), ({"ffn": None, "ffn_conv": 2}, "no ffn")],
)
def test_convolutions_of_nothing_are_refused(change, word) -> None:
    with pytest.raises(SpecError, match=word):
        arch(replace(LAYER, **change))
