"""A model on several devices as the kernels that one device runs in a pass, fused as its runtime fuses them.

Sizes may be arrays, so that one lowering stands for every request of a table that shares model, plan and formats.
Layers that are alike are lowered once and counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.dtypes import DType
from chipwise.core.errors import SpecError, Unsupported
from chipwise.hardware.runtime import Runtime
from chipwise.ops import AttentionOp, CollectiveOp, Elementwise, EmbeddingOp, Matmul, NormOp, Op, SampleOp
from chipwise.serve.formats import Formats
from chipwise.serve.plan import Plan
from chipwise.spec import ArchSpec, Attention, FeedForward

Ints = npt.NDArray[np.int64] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one pass is asked for, by each replica of attention: so many sequences, each with so many new positions.

    Attributes:
        batch: Sequences.
        query_tokens: New positions of each.
        past_tokens: Positions of each that the cache holds already.
    """

    batch: Ints
    query_tokens: Ints
    past_tokens: Ints

    @property
    def tokens(self) -> Ints:
        """New positions of all sequences together."""
        return self.batch * self.query_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An operator, where it stands, and how many times a pass runs it."""

    place: str
    op: Op
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that a lowering depends on besides the pass."""

    arch: ArchSpec
    plan: Plan
    formats: Formats
    runtime: Runtime


def lower_pass(setting: Setting, step: Step) -> tuple[Part, ...]:
    """The kernels of one pass on one device of each pipeline stage, in order.

    Raises:
        SpecError: The plan does not divide the model.
        Unsupported: A block that is not lowered.
    """
    check_plan(setting.arch, setting.plan)
    return tuple(_parts(setting, step))


def check_plan(arch: ArchSpec, plan: Plan) -> None:
    """That every matrix splits evenly.

    Raises:
        SpecError: It does not; says which size and what would.
    """
    for layer in arch.layers:
        if isinstance(layer.attention, Attention) and layer.attention.heads % plan.tp:
            raise SpecError(
                f"{plan.tp} devices do not divide the {layer.attention.heads} heads of {arch.name}; "
                f"{_divisors(layer.attention.heads)} do",
                field="tp",
            )
        if isinstance(layer.ffn, FeedForward) and layer.ffn.width % plan.tp:
            raise SpecError(
                f"{plan.tp} devices do not divide the FFN width {layer.ffn.width} of {arch.name}", field="tp"
            )
    if plan.pp > len(arch.layers):
        raise SpecError(f"{arch.name} has {len(arch.layers)} layers, fewer than {plan.pp} stages", field="pp")


def _divisors(number: int) -> str:
    return ", ".join(str(i) for i in (1, 2, 4, 8, 16, 32, 64, 128) if number % i == 0)


def _parts(setting: Setting, step: Step) -> Iterator[Part]:
    arch, plan, formats = setting.arch, setting.plan, setting.formats
    tokens = step.tokens
    yield Part(
        place="embedding",
        op=EmbeddingOp(
            tokens=tokens,
            width=arch.d_model,
            rows=arch.vocab_size,
            weights=formats.activations,
            activations=formats.activations,
        ),
    )
    for place, count, layer in alike(arch):
        for name, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            if block is None:
                continue
            for part in _norm(setting, tokens, quantised=formats.quantises):
                yield Part(place=f"{place}.{name}.{part.place}", op=part.op, count=count * part.count)
            for part in _block(block, setting, step):
                yield Part(place=f"{place}.{name}.{part.place}", op=part.op, count=count * part.count)
    for part in _norm(setting, step.batch, quantised=False):
        yield Part(place=f"head.{part.place}", op=part.op)
    vocabulary = -(-arch.vocab_size // plan.tp)
    yield Part(
        place="head.logits",
        op=Matmul(
            m=step.batch, k=arch.d_model, n=vocabulary, weights=formats.activations, activations=formats.activations
        ),
    )
    if plan.tp > 1:
        payload = step.batch * vocabulary * DType(formats.activations).size_bytes
        yield Part(
            place="head.gather", op=CollectiveOp(collective="all_gather", payload_bytes=payload, devices=plan.tp)
        )
    sample = SampleOp(rows=step.batch, vocabulary=arch.vocab_size, activations=formats.activations)
    yield Part(place="head.sample", op=sample)
    if plan.pp > 1:
        payload = tokens * arch.d_model * DType(formats.activations).size_bytes
        yield Part(
            place="stages.send", op=CollectiveOp(collective="p2p", payload_bytes=payload, devices=2), count=plan.pp - 1
        )


def alike(arch: ArchSpec) -> Iterator[tuple[str, int, Any]]:
    """Each distinct layer once: its name in breakdowns, how many there are, and itself."""
    groups: dict[Any, list[int]] = {}
    for i, layer in enumerate(arch.layers):
        groups.setdefault((layer.attention, layer.ffn), []).append(i)
    for numbers in groups.values():
        first, last = numbers[0], numbers[-1]
        spread = f"{first}" if first == last else f"{first}-{last}"
        every = "" if len(numbers) == last - first + 1 else f" ({len(numbers)} of them)"
        yield f"layers {spread}{every}", len(numbers), arch.layers[first]


def _norm(setting: Setting, rows: Ints, *, quantised: bool) -> Iterator[Part]:
    """The residual sum, the norm, and the quantisation of what it gives, as kernels."""
    arch, runtime, formats = setting.arch, setting.runtime, setting.formats
    fused = runtime.fuses("skip_norm")
    if not fused:
        yield _elementwise("add", "add", rows * arch.d_model, formats)
    yield Part(
        place="norm",
        op=NormOp(
            rows=rows,
            width=arch.d_model,
            norm=arch.norm,
            skip=fused,
            bias=arch.norm_bias,
            activations=formats.activations,
        ),
    )
    if quantised and not runtime.fuses("quantise"):
        yield _elementwise("quantise", "quantise", rows * arch.d_model, formats)


def _elementwise(place: str, function: Any, elements: Ints, formats: Formats) -> Part:
    output = formats.weights if function == "quantise" else None
    op = Elementwise(function=function, elements=elements, activations=formats.activations, output=output)
    return Part(place=place, op=op)


def _block(block: Any, setting: Setting, step: Step) -> Iterator[Part]:
    if isinstance(block, Attention):
        return _attention(block, setting, step)
    if isinstance(block, FeedForward):
        return _ffn(block, setting, step.tokens)
    raise Unsupported(f"{type(block).__name__} blocks of {setting.arch.name} are not priced yet")


def _matmul(place: str, setting: Setting, m: Ints, k: Ints, n: Ints, *, bias: bool = False) -> Part:
    formats = setting.formats
    return Part(
        place=place, op=Matmul(m=m, k=k, n=n, weights=formats.weights, activations=formats.product_inputs, bias=bias)
    )


def _all_reduce(setting: Setting, tokens: Ints) -> Iterator[Part]:
    if setting.plan.tp > 1:
        payload = tokens * setting.arch.d_model * DType(setting.formats.activations).size_bytes
        yield Part(
            place="all_reduce",
            op=CollectiveOp(collective="all_reduce", payload_bytes=payload, devices=setting.plan.tp),
        )


def _attention(block: Attention, setting: Setting, step: Step) -> Iterator[Part]:
    plan, formats, runtime, d_model = setting.plan, setting.formats, setting.runtime, setting.arch.d_model
    tokens = step.tokens
    heads, kv_heads = block.heads // plan.tp, max(1, block.kv_heads // plan.tp)
    q, kv = heads * block.head_size, kv_heads * block.head_size
    if runtime.fuses("qkv"):
        yield _matmul("qkv", setting, tokens, d_model, q + 2 * kv, bias=block.qkv_bias)
    else:
        for name, width in (("q", q), ("k", kv), ("v", kv)):
            yield _matmul(name, setting, tokens, d_model, width, bias=block.qkv_bias)
    if block.qk_norm:
        op = NormOp(rows=tokens * (heads + kv_heads), width=block.head_size, activations=formats.activations)
        yield Part(place="qk_norm", op=op)
    if runtime.fuses("rope_cache"):
        yield _elementwise("rope_cache", "rope", tokens * (q + 2 * kv), formats)
    else:
        if block.rope:
            yield _elementwise("rope", "rope", tokens * (q + kv), formats)
        yield _elementwise("cache", "kv_write", tokens * 2 * kv, formats)
    yield Part(
        place="attend",
        op=AttentionOp(
            batch=step.batch,
            query_tokens=step.query_tokens,
            past_tokens=step.past_tokens,
            heads=heads,
            kv_heads=kv_heads,
            head_size=block.head_size,
            rope=False,
            window=block.window,
            activations=formats.activations,
            cache=formats.cache,
        ),
    )
    if formats.quantises and not runtime.fuses("quantise"):
        yield _elementwise("quantise", "quantise", tokens * q, formats)
    yield _matmul("out", setting, tokens, q, d_model, bias=block.out_bias)
    yield from _all_reduce(setting, tokens)


_GATED = {"silu": "silu_mul", "gelu": "gelu_mul", "gelu_tanh": "gelu_tanh_mul", "relu": "mul"}


def _ffn(block: FeedForward, setting: Setting, tokens: Ints, *, reduce: bool = True) -> Iterator[Part]:
    formats, runtime, d_model = setting.formats, setting.runtime, setting.arch.d_model
    width = block.width // setting.plan.tp
    if block.gated and runtime.fuses("gate_up"):
        yield _matmul("gate_up", setting, tokens, d_model, 2 * width, bias=block.bias)
    elif block.gated:
        yield _matmul("gate", setting, tokens, d_model, width, bias=block.bias)
        yield _matmul("up", setting, tokens, d_model, width, bias=block.bias)
    else:
        yield _matmul("up", setting, tokens, d_model, width, bias=block.bias)
    if block.gated and runtime.fuses("act_mul"):
        yield _elementwise("act_mul", _GATED[block.activation], tokens * width, formats)
    else:
        yield _elementwise("act", block.activation, tokens * width, formats)
        if block.gated:
            yield _elementwise("mul", "mul", tokens * width, formats)
    if formats.quantises and not runtime.fuses("quantise"):
        yield _elementwise("quantise", "quantise", tokens * width, formats)
    yield _matmul("down", setting, tokens, width, d_model, bias=block.bias)
    if reduce:
        yield from _all_reduce(setting, tokens)
