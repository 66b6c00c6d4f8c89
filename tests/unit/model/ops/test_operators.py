"""Products, scans, routing, collectives and small operators: by hand, by law, against torch's own counter."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.matmul import ConvOp, GroupedMatmul, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.routing import ExpertsOp, RouteOp
from chipwise.model.ops.scan import ScanOp
from chipwise.model.ops.work import Work


def test_a_product_in_fp8_leaves_in_bf16() -> None:
    """m 3, k 256, n 128: FP8 in, two blocks of 128×128 with an FP32 scale each, BF16 out."""
    work = Matmul(m=3, k=256, n=128, weights="fp8_block", activations="fp8").work()
    assert work == Work(
        flops=2 * 3 * 256 * 128, weight_bytes=256 * 128 + 2 * 4, read_bytes=3 * 256, write_bytes=3 * 128 * 2
    )


def test_groups_without_rows_are_not_read() -> None:
    """Five rows meet at most five of eight matrices of 4×6."""
    work = GroupedMatmul(tokens=5, groups=8, k=4, n=6).work()
    assert (work.flops, work.weight_bytes) == (2 * 5 * 24, 5 * 24 * 4)
    assert GroupedMatmul(tokens=50, groups=8, k=4, n=6).work().weight_bytes == 8 * 24 * 4


def test_experts_by_hand() -> None:
    """8 tokens, 2 of 4 experts each, all local: 16 rows; every expert is met but for (1/2)^8 of the time.

    Gated, width 10, d_model 6: 2·3·6·10 FLOPs a row, six a value of the width for SiLU and the product.
    """
    op = ExpertsOp(tokens=8, d_model=6, width=10, experts=4, local_experts=4, topk=2)
    assert op.rows() == 16
    assert op.work().flops == 16 * 360 + 160 * 6
    assert op.work().weight_bytes == pytest.approx(4 * (1 - 2**-8) * 3 * 60 * 4)
    # read: rows, gate and up, their product; written: gate and up, their product, results
    assert op.work().read_bytes == 4 * (16 * 6 + 320 + 160)
    assert op.work().write_bytes == 4 * (320 + 160 + 16 * 6)
    # with biases: gate and up 10 each, down 6
    biased = ExpertsOp(tokens=8, d_model=6, width=10, experts=4, local_experts=4, topk=2, bias=True).work()
    assert biased.flops - op.work().flops == 16 * 26
    assert biased.weight_bytes - op.work().weight_bytes == pytest.approx(4 * (1 - 2**-8) * 26 * 4)


def test_experts_met_are_those_of_all_ways_to_route() -> None:
    """Three tokens that choose two of four experts: the mean over all 6³ ways."""
    choices = list(itertools.combinations(range(4), 2))
    ways = [len(set().union(*way)) for way in itertools.product(choices, repeat=3)]
    op = ExpertsOp(tokens=3, d_model=2, width=2, experts=4, local_experts=4, topk=2)
    assert op.met() == pytest.approx(sum(ways) / len(ways))


class Counted:
    """A number that counts the arithmetic done on it."""

    done = 0

    def __add__(self, other: object) -> Counted:
        Counted.done += 1
        return self

    __mul__ = __sub__ = __add__


def _walk(step: Any) -> int:
    Counted.done = 0
    step(Counted())
    return Counted.done


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_step_of_each_recurrence_does_what_its_equations_do(key: int, value: int) -> None:
    """Each equation walked element by element, a sum of n products being n multiplications and n additions."""

    def mamba2(x: Counted) -> None:
        for _ in range(value):
            scaled = x * x  # dt·x
            for _ in range(key):
                state = x * x + scaled * x  # decayed, plus an outer product
                x + state * x  # read out by C
            x + x * x  # plus D·x

    def gated_delta(x: Counted) -> None:
        for _ in range(value):
            for _ in range(key):
                decayed = x * x
                x + decayed * x  # what the state holds for the key
            wanted = (x - x) * x  # scaled difference
            for _ in range(key):
                state = x + wanted * x
                x + state * x  # read out by the query

    for variant, step in (("mamba2", mamba2), ("gated_delta", gated_delta)):
        op = ScanOp(variant=variant, batch=1, query_tokens=1, heads=1, key_size=key, value_size=value)
        assert op.work().flops == _walk(step)


def test_scans_by_hand() -> None:
    """Mamba-2, 4 heads of 8, states of 16, 2 groups, 300 tokens: a chunk of 256 and one of 44.

    Pairs: 256·257/2 + 44·45/2 = 33,886. The state: 4·8·16 FP32 values, in and out.
    """
    op = ScanOp(variant="mamba2", batch=1, query_tokens=300, heads=4, key_size=16, value_size=8, groups=2)
    assert op.work().flops == 33_886 * (2 * 2 * 16 + 4 * (2 + 16)) + 300 * 4 * (4 * 128 + 24)
    assert op.state_bytes == 4 * 8 * 16 * 4
    # x 4·8, dt 4, B and C 2·2·16 values a token
    assert op.work().read_bytes == 4 * 300 * (32 + 4 + 64) + op.state_bytes
    assert op.work().write_bytes == 4 * 300 * 32 + op.state_bytes
    # Gated delta, one chunk of 64: 2,080 pairs; a pair is 6·16 + 4·8 FLOPs and 2·64/3 of the inverse.
    delta = ScanOp(variant="gated_delta", batch=1, query_tokens=64, heads=4, key_size=16, value_size=8, groups=4)
    assert delta.work().flops == 2_080 * 4 * (96 + 32 + 42) + 64 * 4 * (6 * 128 + 16)


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_a_scan_grows_with_its_tokens_and_not_with_their_square(first: int, second: int) -> None:
    def flops(tokens: int) -> float:
        op = ScanOp(variant="gated_delta", batch=1, query_tokens=tokens, heads=1, key_size=8, value_size=8)
        return float(op.work().flops)

    assert flops(64 * first + 64 * second) == flops(64 * first) + flops(64 * second)


def test_small_operators_by_hand() -> None:
    assert RouteOp(tokens=3, experts=8, topk=2).work() == Work(flops=24 * 7, read_bytes=96, write_bytes=48)
    assert SampleOp(rows=2, vocabulary=10).work() == Work(flops=120, read_bytes=80, write_bytes=8)
    assert SampleOp(rows=2, vocabulary=10, greedy=True, activations="bf16").work().flops == 20
    gate = Elementwise(function="silu_mul", elements=6, activations="bf16").work()
    assert gate == Work(flops=36, read_bytes=2 * 12, write_bytes=12)
    narrow = Elementwise(function="quantise", elements=32, activations="bf16", output="mxfp4").work()
    assert (narrow.read_bytes, narrow.write_bytes) == (64, 16 + 1)
    conv = ConvOp(batch=1, positions=5, in_channels=6, out_channels=6, taps=4, groups=6, bias=True).work()
    assert conv == Work(flops=30 * 9, weight_bytes=4 * 30, read_bytes=120, write_bytes=120)


def test_collectives_by_hand() -> None:
    """1,200 bytes on 4 devices: reduced on all, each sends 3/4 twice and sums 3/4 of 600 BF16 values."""
    sent = {"all_reduce": 1800, "all_gather": 900, "reduce_scatter": 900, "all_to_all": 900, "p2p": 1200}
    for name, expected in sent.items():
        assert CollectiveOp(collective=name, payload_bytes=1200, devices=4).work().link_bytes == expected
    assert CollectiveOp(collective="all_reduce", payload_bytes=1200, devices=4).work().flops == 450
    assert CollectiveOp(collective="all_gather", payload_bytes=1200, devices=4).work().flops == 0
    alone = CollectiveOp(collective="all_reduce", payload_bytes=1200, devices=1).work()
    assert (alone.link_bytes, alone.flops) == (0, 0)


@given(st.integers(1, 10**9), st.integers(2, 64))
def test_reducing_on_all_is_scattering_and_gathering(payload: int, devices: int) -> None:
    def sent(name: Any) -> float:
        return float(CollectiveOp(collective=name, payload_bytes=payload, devices=devices).work().link_bytes)

    assert sent("all_reduce") == pytest.approx(sent("reduce_scatter") + sent("all_gather"))


MAKERS: dict[str, Any] = {
    "matmul": lambda a, b, c: Matmul(m=a, k=b, n=c, weights="nvfp4", activations="fp8", bias=True),
    "blocks": lambda a, b, c: Matmul(m=a, k=b, n=c, weights="fp8_block", activations="bf16"),
    "grouped": lambda a, b, c: GroupedMatmul(tokens=a, groups=b, k=c, n=c, weights="int4"),
    "conv": lambda a, b, c: ConvOp(batch=a, positions=b, in_channels=c, out_channels=c, taps=3),
    "causal": lambda a, b, c: _attention(a, b, c),
    "window": lambda a, b, c: _attention(a, b, c, window=7),
    "chunk": lambda a, b, c: _attention(a, b, c, chunk=5),
    "encoder": lambda a, b, c: _attention(a, b, c, causal=False, window=6),
    "unfused": lambda a, b, c: _attention(a, b, c, fused=False),
    "latent": lambda a, b, c: LatentAttentionOp(
        batch=a, query_tokens=b, past_tokens=c, heads=2, kv_rank=8, rope_size=4, nope_size=6, value_size=6
    ),
    "mamba2": lambda a, b, c: ScanOp(variant="mamba2", batch=a, query_tokens=b, heads=2, key_size=c, value_size=4),
    "delta": lambda a, b, c: ScanOp(variant="gated_delta", batch=a, query_tokens=b, heads=2, key_size=c, value_size=4),
    "norm": lambda a, b, c: NormOp(rows=a * b, width=c, skip=True, activations="bf16"),
    "elementwise": lambda a, b, c: Elementwise(function="rope", elements=a * b * c, output="nvfp4"),
    "embedding": lambda a, b, c: EmbeddingOp(tokens=a, width=b, rows=c, weights="int8"),
    "sample": lambda a, b, c: SampleOp(rows=a, vocabulary=b * c),
    "route": lambda a, b, c: RouteOp(tokens=a * b, experts=c + 2, topk=2),
    "experts": lambda a, b, c: ExpertsOp(tokens=a, d_model=b, width=c, experts=8, local_experts=4, topk=2),
    "collective": lambda a, b, c: CollectiveOp(collective="all_reduce", payload_bytes=a * b, devices=c),
}


def _attention(query: Any, past: Any, batch: Any, **changes: Any) -> AttentionOp:
    sizes = {"batch": batch, "query_tokens": query, "past_tokens": past, "heads": 4, "kv_heads": 2, "head_size": 8}
    return AttentionOp(**sizes, **changes)


@pytest.mark.parametrize("name", MAKERS)
@given(rows=st.lists(st.tuples(*[st.integers(1, 700)] * 3), min_size=1, max_size=5))
def test_arrays_of_sizes_are_each_size_alone(name: str, rows: list[tuple[int, int, int]]) -> None:
    together = MAKERS[name](*(np.array(column) for column in zip(*rows, strict=True))).work()
    for i, row in enumerate(rows):
        alone = MAKERS[name](*row).work()
        for field in ("flops", "weight_bytes", "read_bytes", "write_bytes", "link_bytes", "bytes", "intensity"):
            column = np.broadcast_to(getattr(together, field), len(rows))
            assert column[i] == pytest.approx(getattr(alone, field), rel=1e-12), field


def test_products_are_what_torch_counts() -> None:
    """Torch counts products alone: a matmul, a grouped one as its groups, convolutions, attention without softmax."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    def counted(call: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            call()
        return int(counter.get_total_flops())

    with torch.device("meta"):
        x, w = torch.empty(5, 7), torch.empty(7, 11)
        assert Matmul(m=5, k=7, n=11).work().flops == counted(lambda: x @ w)
        parts, stack = torch.empty(3, 4, 7), torch.empty(3, 7, 11)
        assert GroupedMatmul(tokens=12, groups=3, k=7, n=11).work().flops == counted(lambda: torch.bmm(parts, stack))
        image, filters = torch.empty(2, 6, 10, 10), torch.empty(8, 3, 3, 3)
        grouped = ConvOp(batch=2, positions=64, in_channels=6, out_channels=8, taps=9, groups=2, input_positions=100)
        convolved = counted(lambda: torch.nn.functional.conv2d(image, filters, groups=2))
        assert grouped.work().flops == convolved
        signal, taps = torch.empty(2, 6, 13), torch.empty(6, 1, 4)
        depthwise = ConvOp(batch=2, positions=10, in_channels=6, out_channels=6, taps=4, groups=6, input_positions=13)
        assert depthwise.work().flops == counted(lambda: torch.nn.functional.conv1d(signal, taps, groups=6))
        q, k = torch.empty(2, 4, 5, 16), torch.empty(2, 4, 9, 16)
        attended = AttentionOp(
            batch=2, query_tokens=5, past_tokens=4, heads=4, kv_heads=4, head_size=16, rope=False, fused=False
        )
        products = counted(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, k))
        assert attended.work().flops - 5 * 2 * 4 * 5 * 9 == products
        # Absorbed latent attention is two products: of queries and results with the latent of all positions.
        latent, keys = torch.empty(1, 3, 40), torch.empty(1, 40, 10)
        op = LatentAttentionOp(
            batch=1, query_tokens=1, past_tokens=9, heads=3, kv_rank=32, rope_size=8, nope_size=16, value_size=16
        )
        scores = torch.empty(1, 3, 10)
        both = counted(lambda: (latent @ keys, scores @ keys.transpose(1, 2)[..., :32]))
        assert op.work().flops - 5 * 3 * 10 == both
        # Experts: gate, up and down of every row.
        rows, up, down = torch.empty(12, 7), torch.empty(7, 11), torch.empty(11, 7)
        dense = counted(lambda: (rows @ up, rows @ up, (rows @ up) @ down)) - counted(lambda: rows @ up)
        experts = ExpertsOp(tokens=6, d_model=7, width=11, experts=4, local_experts=4, topk=2)
        assert experts.work().flops - 6 * 12 * 11 == dense
