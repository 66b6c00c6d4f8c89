"""Blocks of images and sound, whole passes and training steps: kernels, their sizes and their sums, by pencil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_kernels_by_hand import ARCH, BARE, STEP, setting, sizes

from chipwise.hardware import datasheet
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.ends import Classes, States
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule, ShortConv
from chipwise.model.kinds.image.stages import Stage
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.kernels.stream import SHARE
from chipwise.predict.served import images, mixers
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.layers import alike
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp, Step
from chipwise.predict.served.training_step import _with_loss, training_step

SQUARES = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False, square=2)
IMAGE = ArchSpec(
    stem=ImageStem(image_size=12, patch=4, prefix_tokens=0),
    head=Classes(count=10, pooling="mean"),
    d_model=16,
    layers=(Layer(attention=SQUARES, ffn=FeedForward(width=24)),) * 2,
    max_tokens=9,
    positions="learned",
)
LOOK = Step(batch=3, query_tokens=9, past_tokens=0)  # three images of 3 x 3 patches: 27 positions


def after_values(block: Attention, step: Step = LOOK, arch: ArchSpec = IMAGE) -> list[tuple[Any, ...]]:
    """Kernels of attention after queries, keys and values, and before the output."""
    return sizes(mixers.attention(block, setting(arch=arch), step))[3:-1]


def test_squares_of_an_image_by_hand() -> None:
    """A grid of 3 needs 2 x 2 squares of 2 x 2 patches: 12 sequences of 4; the 27 positions go there and back."""
    moved = 2 * 27 * 16
    squares, attend = ("squares", "transpose", moved), ("attend", 12, 4, 0, 2, 2, 8)
    assert after_values(SQUARES) == [squares, attend]
    assert after_values(replace(SQUARES, shift=True)) == [squares, ("shift", "copy", moved), attend]
    # Distances along each axis: 3 x 3 pairs of two numbers; 4 x 4 pairs of patches in a square, for two heads.
    assert after_values(replace(SQUARES, bias_network=32)) == [
        squares,
        ("bias_network.in", 9, 2, 32),
        ("bias_network.out", 9, 32, 2),
        ("position_bias", "copy", 16 * 2),
        attend,
    ]
    table = next(
        part.op
        for part in mixers.attention(replace(SQUARES, relative_buckets=9), setting(arch=IMAGE), LOOK)
        if part.place == "position_bias"
    )
    assert isinstance(table, EmbeddingOp)
    assert (table.tokens, table.width, table.rows) == (16, 2, 9)
    assert (table.weights, table.activations) == ("bf16", "bf16")
    small = next(
        part.op
        for part in mixers.attention(replace(SQUARES, bias_network=32), setting(arch=IMAGE), LOOK)
        if part.place == "bias_network.in"
    )
    assert (small.weights, small.bias) == ("bf16", True)


def test_a_bias_of_pairs_is_looked_up_for_images_alone() -> None:
    """A text's buckets are added in the kernel; without squares an image's pairs are all of its positions."""
    text = replace(SQUARES, square=None, relative_buckets=9)
    assert [item[0] for item in after_values(text, STEP, ARCH)] == ["attend"]
    whole = next(part.op for part in mixers.attention(text, setting(arch=IMAGE), LOOK) if part.place == "position_bias")
    assert whole.tokens == 81


def test_stretches_of_a_sound_are_sequences_and_those_of_a_text_are_not() -> None:
    ahead = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False, chunk=4)
    assert after_values(ahead) == [("attend", 7, 4, 0, 2, 2, 8)]  # 27 positions in stretches of 4
    text = replace(ahead, causal=True)
    (attend,) = (p.op for p in mixers.attention(text, setting(), STEP) if p.place == "attend")
    assert (attend.batch, attend.query_tokens, attend.chunk, attend.owns_cache) == (3, 5, 4, True)


def test_keys_of_distances_by_hand() -> None:
    """Nine positions are at 17 distances; each query meets them, and the products are shifted to their pairs."""
    block = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False, relative_keys=True)
    assert after_values(block) == [
        ("distances", 17, 16, 16),
        ("distance_scores", 3, 9, 0, 2, 2, 8),
        ("distance_shift", "copy", 27 * 2 * 9),
        ("attend", 3, 9, 0, 2, 2, 8),
    ]
    scores = next(p.op for p in mixers.attention(block, setting(arch=IMAGE), LOOK) if p.place == "distance_scores")
    assert (scores.rope, scores.causal, scores.owns_cache, scores.cache) == (False, False, False, "bf16")


def test_norms_and_values_that_attention_may_have() -> None:
    """Values from keys need no product; keys of an earlier layer neither, nor a place in the cache."""
    block = Attention(heads=4, kv_heads=2, head_size=8)
    one = sizes(mixers.attention(replace(block, values_from_keys=True), setting(), STEP))
    assert [item[0] for item in one] == ["q", "k", "rope", "cache", "attend", "out"]
    fused = setting(replace(BARE, fused=frozenset({"qkv", "rope_cache"})))
    assert sizes(mixers.attention(replace(block, values_from_keys=True), fused, STEP))[0] == ("qkv", 15, 16, 48)
    again = list(mixers.attention(replace(block, reuses_cache=True), setting(), STEP))
    assert sizes(again) == [
        ("q", 15, 16, 32),
        ("rope", "rope", 15 * 32),
        ("attend", 3, 5, 7, 4, 2, 8),
        ("out", 15, 32, 16),
    ]
    assert not again[2].op.owns_cache
    normed = next(
        p.op for p in mixers.attention(replace(block, sub_norm=True), setting(), STEP) if p.place == "sub_norm"
    )
    assert (normed.rows, normed.width, normed.norm, normed.bias) == (15, 32, "layernorm", True)


def test_convolutions_between_products_by_hand() -> None:
    """Conformer's module at a width of 16, and gates of 12 on two devices, 6 each."""
    module = list(mixers.conv_module(ConvModule(taps=7, norm="layer"), setting(), STEP))
    filter_, normed = module[2].op, module[3].op
    assert sizes(part for part in module if not isinstance(part.op, ConvOp)) == [
        ("in", 15, 16, 32),
        ("gate", "sigmoid_mul", 15 * 16),
        ("filter_norm", 15, 16),
        ("act", "silu", 15 * 16),
        ("out", 15, 16, 16),
    ]
    assert (filter_.batch, filter_.positions, filter_.in_channels, filter_.groups, filter_.taps) == (3, 5, 16, 16, 7)
    assert (filter_.bias, normed.norm, normed.bias) == (True, "layernorm", True)
    assert len(list(mixers.conv_module(ConvModule(taps=7), setting(), STEP))) == 5
    short = list(mixers.short_conv(ShortConv(width=12, taps=3), setting(tp=2), STEP))
    assert sizes(part for part in short if not isinstance(part.op, ConvOp)) == [
        ("in", 15, 16, 18),
        ("gate_in", "mul", 15 * 6),
        ("gate_out", "mul", 15 * 6),
        ("out", 15, 6, 16),
        ("all_reduce", "all_reduce", 2 * 15 * 16, 2),
    ]
    assert (short[2].op.in_channels, short[2].op.taps, short[2].op.bias) == (6, 3, False)


def test_patches_after_convolutions_by_hand() -> None:
    """16 pixels halved twice are 4 x 4; patches of 8 pixels are 2 x 2 of these, four of 24 values, and a class."""
    stem = ImageStem(image_size=16, patch=8, convs=(5, 6), prefix_tokens=1, bias=True)
    arch = replace(
        IMAGE, stem=stem, max_tokens=5, layers=(replace(IMAGE.layers[0], attention=replace(SQUARES, square=None)),)
    )
    found = list(images.patches(stem, setting(arch=arch), replace(LOOK, query_tokens=5)))
    convs = [part.op for part in found if isinstance(part.op, ConvOp)]
    assert [(op.positions, op.in_channels, op.out_channels, op.taps, op.input_positions) for op in convs] == [
        (64, 3, 5, 9, 256),
        (16, 5, 6, 9, 64),
    ]
    assert sizes(part for part in found if isinstance(part.op, Elementwise | Matmul)) == [
        ("activations.0", "gelu", 3 * 64 * 5),
        ("activations.1", "gelu", 3 * 16 * 6),
        ("patches", 3 * 4, 24, 16),
    ]
    table = found[-1].op
    assert isinstance(table, EmbeddingOp)
    assert (table.tokens, table.width, table.rows) == (15, 16, 1)
    without = replace(stem, prefix_tokens=0)
    assert (
        list(images.patches(without, setting(arch=replace(arch, stem=without)), replace(LOOK, query_tokens=4)))[
            -1
        ].op.rows
        == 1
    )


def test_a_pyramid_by_hand() -> None:
    """24 pixels in patches of 2: 12 x 12 of width 4 in two layers, merged to 6 x 6 of width 8, to 3 x 3 of width 16."""
    narrow = Attention(heads=1, kv_heads=1, head_size=4, rope=False, causal=False)
    stages = (
        Stage(d_model=4, depth=2, attention=narrow, ffn=FeedForward(width=6, gated=False)),
        Stage(d_model=8, depth=3, attention=narrow, ffn=FeedForward(width=10, gated=False), norm_after=True),
    )
    stem = ImageStem(image_size=24, patch=2, prefix_tokens=0, stages=stages, stem_norm=True)
    whole = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)
    arch = replace(IMAGE, stem=stem, positions="none", layers=(Layer(attention=whole, ffn=FeedForward(width=24)),))
    found = {part.place: part for part in lower_pass(setting(arch=arch), LOOK)}
    rows = {
        place: (part.op.m, part.op.k, part.op.n, part.count)
        for place, part in found.items()
        if isinstance(part.op, Matmul)
    }
    assert rows["stem.patches"] == (3 * 144, 12, 4, 1)
    assert rows["stages.0.layers 0-1.ffn.up"] == (3 * 144, 4, 6, 2)
    assert rows["stages.0.merge"] == (3 * 36, 16, 8, 1)
    assert rows["stages.1.layers 0-2.ffn.up"] == (3 * 36, 8, 10, 3)
    assert rows["stages.1.merge"] == (3 * 9, 32, 16, 1)
    assert rows["layers 0.ffn.down"] == (27, 24, 16, 1)
    norms = {place: (part.op.rows, part.op.width) for place, part in found.items() if isinstance(part.op, NormOp)}
    assert norms["stem.norm"] == (3 * 144, 4)
    assert norms["stages.0.merge.norm"] == (3 * 36, 16)  # before the matrix: four positions of 4
    assert norms["stages.1.merge.norm"] == (3 * 9, 16)  # after it
    assert found["stages.0.merge.gather"].op.elements == 3 * 144 * 4
    assert "embedding" not in found
    assert found["head.mean"].op == PoolOp(batch=3, positions=9, width=16, activations="bf16")
    assert rows["head.logits"] == (3, 16, 10, 1)


def test_what_is_made_of_the_positions_by_hand() -> None:
    """One query an image over its nine positions; norm and feed-forward of one row an image; a shared space of 7."""
    arch = replace(IMAGE, head=States(pooling="attention", projection=7))
    found = [part for part in lower_pass(setting(arch=arch), LOOK) if part.place.startswith("head.")]
    attend = next(part.op for part in found if part.place == "head.pool.attend")
    assert isinstance(attend, AttentionOp)
    assert (attend.batch, attend.query_tokens, attend.past_tokens, attend.heads, attend.head_size) == (3, 1, 9, 2, 8)
    assert (attend.rope, attend.causal, attend.cross, attend.owns_cache) == (False, False, True, False)
    products = {part.place: (part.op.m, part.op.k, part.op.n) for part in found if isinstance(part.op, Matmul)}
    assert products == {
        "head.pool.q": (3, 16, 16),
        "head.pool.kv": (27, 16, 32),
        "head.pool.out": (3, 16, 16),
        "head.pool.gate": (3, 16, 24),
        "head.pool.up": (3, 16, 24),
        "head.pool.down": (3, 24, 16),
        "head.projection": (3, 16, 7),
    }
    assert [part.op.bias for part in found if part.place in ("head.pool.q", "head.pool.kv", "head.pool.out")] == [
        True
    ] * 3


def test_the_ends_of_a_decoder_by_hand() -> None:
    """100 words on two devices are padded to 128, 64 each; one row a sequence has logits, or all rows in training."""
    padded = replace(BARE, vocabulary_multiple=64)
    found = {part.place: part for part in lower_pass(setting(padded, tp=2, pp=2), STEP)}
    table, logits, sample = (found[place].op for place in ("embedding", "head.logits", "head.sample"))
    assert (table.tokens, table.width, table.rows) == (15, 16, 50)
    assert (logits.m, logits.k, logits.n) == (3, 16, 64)
    assert found["head.norm"].op.rows == 3
    assert sizes([found["head.all_gather"]]) == [("head.all_gather", "all_gather", 2 * 3 * 128, 2)]
    assert (sample.rows, sample.vocabulary) == (3, 100)
    send = found["stages.send"]
    assert (send.op.collective, send.op.payload_bytes, send.op.devices, send.count) == ("p2p", 2 * 15 * 16, 2, 1)
    whole = {part.place: part.op for part in lower_pass(setting(), replace(STEP, every_logit=True))}
    assert (whole["head.logits"].m, whole["head.norm"].rows, whole["head.sample"].rows) == (15, 15, 15)
    assert whole["head.logits"].n == 128  # vLLM pads to 64 by itself
    assert "stages.send" not in whole


def test_layers_with_more_than_two_blocks_by_hand() -> None:
    """A first feed-forward, a scale after each block, a norm before and after each, and one at the end."""
    layer = ARCH.layers[0]
    assert layer.attention is not None
    rich = replace(layer, first_ffn=FeedForward(width=10), scale=True, last_norm=True, attention_conv=3, ffn_conv=5)
    found = lower_pass(setting(arch=replace(ARCH, layers=(rich,), norm_place="both")), STEP)
    places = [part.place.removeprefix("layers 0.") for part in found if part.place.startswith("layers")]
    norm = ["add", "norm"]
    assert places == [
        *(f"first_ffn.{name}" for name in (*norm, "gate", "up", "act", "mul", "down")),
        *(f"attention.{name}" for name in (*norm, "conv", "q", "k", "v", "rope", "cache", "attend", "out", "scale")),
        *(f"attention.{name}" for name in norm),
        *(f"ffn.{name}" for name in (*norm, "conv", "gate", "up", "act", "mul", "down", "scale", *norm)),
        *(f"last.{name}" for name in norm),
    ]
    by_place = {part.place.removeprefix("layers 0."): part.op for part in found}
    assert [by_place[place].elements for place in ("attention.scale", "ffn.scale")] == [15 * 16] * 2
    assert [by_place[place].taps for place in ("attention.conv", "ffn.conv")] == [3, 5]


def test_blocks_side_by_side_are_summed_before_the_devices_are() -> None:
    side = replace(ARCH.layers[0], parallel=True)
    found = lower_pass(setting(arch=replace(ARCH, layers=(side,)), tp=2), STEP)
    inside = [part for part in found if part.place.startswith("layers")]
    assert [part.place for part in inside if isinstance(part.op, CollectiveOp)] == ["layers 0.ffn.all_reduce"]
    (join,) = (part.op for part in inside if part.place == "layers 0.ffn.join")
    assert (join.function, join.elements) == ("add", 15 * 16)


def test_layers_that_are_alike_have_one_name() -> None:
    one = ARCH.layers[0]
    other = replace(one, ffn=FeedForward(width=8))
    shared = replace(one, shares=0)
    groups = alike((one, other, shared, one))
    assert [(group.name, group.numbers, group.count, group.owned) for group in groups] == [
        ("layers 0-3 (3 of them)", (0, 2, 3), 3, 2),
        ("layers 1", (1,), 1, 1),
    ]
    assert alike((one, one))[0].name == "layers 0-1"


GPT = uniform(vocab_size=64, d_model=16, depth=4, heads=4, kv_heads=2, head_size=8, ffn_width=24, max_tokens=64)


def trained(**plan: int) -> Any:
    known = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm", runtime="torch-compile"))).setting
    return replace(known, arch=GPT, plan=Plan(**plan))


H100 = datasheet.load("h100-sxm")


def test_the_parts_of_a_step_are_its_kernels() -> None:
    """Times of microbatches add up; Adam moves 30 bytes a parameter; the share of the peak counts 6 a token."""
    one = training_step(trained(), H100, batch=4, tokens=32)
    two = training_step(trained(), H100, batch=8, tokens=32, microbatches=2, checkpoint=True)
    for step, times in ((one, 1), (two, 2)):
        summed = {"backward.": 0.0, "again.": 0.0, "": 0.0}
        for cost in step.operators[:-1]:
            head = next(head for head in summed if cost.place.startswith(head))
            summed[head] += cost.latency_s
        assert step.forward_s == pytest.approx(summed[""])
        assert step.backward_s == pytest.approx(summed["backward."])
        assert step.recompute_s == pytest.approx(summed["again."])
        assert step.forward_s == pytest.approx(times * one.forward_s)
        assert step.backward_s == pytest.approx(times * one.backward_s)
        assert step.communication_s == 0
        parts = step.forward_s + step.backward_s + step.recompute_s + step.optimiser_s
        assert step.step.value == pytest.approx(parts)
        tokens = 4 * times * 32
        assert step.tokens_per_s == pytest.approx(tokens / parts)
        peak = H100.peak(trained().formats.activations)
        assert step.mfu == pytest.approx(6 * GPT.active_parameters() * tokens / parts / peak)
        assert step.step.low * step.step.high == pytest.approx(step.step.value**2)
        assert step.step.value < step.step.high < 3 * step.step.value
    assert one.recompute_s == 0 < two.recompute_s < two.forward_s  # neither embedding nor head is run again
    ends = sum(cost.latency_s for cost in one.operators if cost.place.startswith(("head", "embedding")))
    assert two.recompute_s == pytest.approx(two.forward_s - 2 * ends)
    adam = one.operators[-1]
    moved = 30 * GPT.parameters()
    assert (adam.place, adam.kind, adam.bound, adam.launch_s, adam.compute_s) == (
        *("optimiser", "elementwise", "memory", 0.0, 0.0),
    )
    assert adam.memory_s == pytest.approx(moved / H100.mem_bandwidth_bytes_per_s)
    assert adam.latency_s == one.optimiser_s == pytest.approx(moved / (SHARE * H100.mem_bandwidth_bytes_per_s))
    assert (adam.work.flops, adam.work.read_bytes, adam.work.write_bytes) == (0, moved, 0)
    assert one.memory_bytes["states"] == 16 * GPT.parameters()
    assert one.memory_bytes["runtime"] == 1e9
    assert one.peak_memory_bytes == sum(one.memory_bytes.values())


def test_the_loss_replaces_sampling() -> None:
    sample = PlacedOp(place="head.sample", op=SampleOp(rows=3, vocabulary=50, activations="bf16"))
    (compiled,) = _with_loss(sample, fused=True)
    assert (compiled.place, compiled.op.function, compiled.op.elements, compiled.op.output) == (
        *("head.loss", "copy", 150, None),
    )
    eager = list(_with_loss(sample, fused=False))
    assert [(part.place, part.op.function, part.op.elements) for part in eager] == [
        ("head.loss", "copy", 150),
        ("head.loss_log", "softmax", 150),
    ]
    assert (eager[0].op.output, eager[1].op.activations) == ("fp32", "fp32")
    other = PlacedOp(place="x", op=NormOp(rows=np.int64(1), width=1))
    assert list(_with_loss(other, fused=False)) == [other]
