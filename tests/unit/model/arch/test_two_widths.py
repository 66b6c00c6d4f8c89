"""Encoder-decoders whose two halves have widths of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, operator_costs
from chipwise.predict.served.request import Request


def translator(read: int, write: int) -> ArchSpec:
    """One layer on each side, eight heads of 64, FFN 1,024."""

    def attention(*, causal: bool) -> Attention:
        return Attention(heads=8, kv_heads=8, head_size=64, rope=False, causal=causal)

    ffn = FeedForward(width=1024, gated=False)
    return ArchSpec(
        stem=Tokens(vocab_size=1000),
        d_model=write,
        encoder_d_model=0 if read == write else read,
        layers=(Layer(attention=attention(causal=True), cross=attention(causal=False), ffn=ffn),),
        encoder=(Layer(attention=attention(causal=False), ffn=ffn),),
        positions="none",
        max_tokens=512,
    )


def test_parameters_by_pencil() -> None:
    read, write, heads = 640, 256, 512
    encoder = 4 * read * heads + 2 * read * 1024 + 2 * read  # q, k, v, out; two of the FFN; two norms
    own, cross = 4 * write * heads, 2 * write * heads + 2 * read * heads  # keys and values come from the encoder
    decoder = own + cross + 2 * write * 1024 + 3 * write
    tables, final_norms = 1000 * (read + write), read + write
    assert translator(read, write).parameters() == encoder + decoder + tables + final_norms


def test_each_half_is_computed_in_its_width() -> None:
    arch = translator(640, 256)
    cost = cost_of(
        Request(model=arch, deployment=Deployment(device="l4", runtime="torch"), prompt_tokens=30, new_tokens=30)
    )
    width = {"encoder": set(), "decoder": set()}
    for each in cost.prefill.parts:
        if each.op.kind == "embedding":
            width["encoder" if each.place.startswith("encoder") else "decoder"].add(each.op.width)
    assert width == {"encoder": {640}, "decoder": {256}}
    keys = next(each.op for each in cost.prefill.parts if each.place.endswith("cross.kv"))
    assert (keys.k, keys.n) == (640, 2 * 512)
    assert not any(each.place.startswith("encoder") for each in operator_costs(cost.decode, 0))


def test_weights_in_memory_are_the_parameters_that_products_and_tables_hold() -> None:
    """The decoder's pass keeps both tables, the head is tied: 2 bytes a parameter."""
    arch = translator(640, 256)
    cost = cost_of(
        Request(
            model=arch,
            deployment=Deployment(device="l4", runtime="torch", weights="bf16"),
            prompt_tokens=30,
            new_tokens=30,
        )
    )
    assert cost.memory.weights[0] == pytest.approx(2 * arch.parameters(), rel=1e-3)


def test_a_wider_encoder_costs_the_prompt_and_not_the_answer() -> None:
    narrow, wide = (
        cost_of(
            Request(
                model=translator(read, 256),
                deployment=Deployment(device="l4", runtime="torch"),
                prompt_tokens=400,
                new_tokens=8,
            )
        )
        for read in (512, 1024)
    )
    assert wide.prefill_s[0] > narrow.prefill_s[0]
    assert wide.step_s[0] == pytest.approx(narrow.step_s[0])


def test_a_width_needs_an_encoder() -> None:
    arch = translator(640, 256)
    with pytest.raises(SpecError, match="encoder_d_model: is set, but the model has no encoder"):
        replace(arch, encoder=(), layers=(replace(arch.layers[0], cross=None),))
