"""Lowers to operators the blocks that process each position separately: feed-forwards and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.dtypes import Size
from chipwise.errors import Unsupported
from chipwise.model.arch.feed_forward import Activation, FeedForward, MixtureOfExperts
from chipwise.model.ops.elementwise import Function
from chipwise.model.ops.routing import ExpertsOp, RouteOp
from chipwise.predict.served.setting import PlacedOp, Setting

GATED: dict[Activation, Function] = {
    "silu": "silu_mul",
    "gelu": "gelu_mul",
    "gelu_tanh": "gelu_tanh_mul",
    "relu": "mul",
    "relu2": "mul",
}


def feed_forward(block: FeedForward, setting: Setting, tokens: Size) -> Iterator[PlacedOp]:
    """The operators of a feed-forward: two or three matrix products, the activation between them, the all-reduce."""
    yield from _products(block, setting, tokens)
    yield from setting.collective("all_reduce", tokens * setting.arch.d_model, setting.plan.tp)


def _products(block: FeedForward, setting: Setting, tokens: Size) -> Iterator[PlacedOp]:
    if block.groups > 1:
        yield from _grouped(block, setting, tokens)
        return
    runtime, d_model = setting.runtime, setting.arch.d_model
    width = block.width // setting.plan.tp
    if block.gated and runtime.fuses("gate_up"):
        yield setting.matmul("gate_up", tokens, d_model, 2 * width, bias=block.bias)
    else:
        if block.gated:
            yield setting.matmul("gate", tokens, d_model, width, bias=block.bias)
        yield setting.matmul("up", tokens, d_model, width, bias=block.bias)
    if block.gated and runtime.fuses("act_mul"):
        yield setting.elementwise("act_mul", GATED[block.activation], tokens * width)
    else:
        yield setting.elementwise("act", block.activation, tokens * width)
        if block.gated:
            yield setting.elementwise("mul", "mul", tokens * width)
    if block.sub_norm:
        yield setting.norm_of("sub_norm", tokens, width, "layernorm", bias=True)
    yield setting.matmul("down", tokens, width, d_model, bias=block.bias)


def _grouped(block: FeedForward, setting: Setting, tokens: Size) -> Iterator[PlacedOp]:
    """The matrix products of a feed-forward whose channels are split into groups. Each device computes whole groups.

    Raises:
        Unsupported: The number of devices does not divide the number of groups.
    """
    if block.groups % setting.plan.tp:
        raise Unsupported(
            f"a feed-forward has {block.groups} groups, which cannot be divided evenly over {setting.plan.tp} devices"
        )
    here, part, d_model = block.groups // setting.plan.tp, block.one_group(), setting.arch.d_model // block.groups
    for name in ("gate", "up") if block.gated else ("up",):
        yield from (setting.matmul(name, tokens, d_model, part.width, bias=block.bias) for _ in range(here))
    yield setting.elementwise("act", block.activation, tokens * part.width * here)
    if block.gated:
        yield setting.elementwise("mul", "mul", tokens * part.width * here)
    yield from (setting.matmul("down", tokens, part.width, d_model, bias=block.bias) for _ in range(here))


def mixture(block: MixtureOfExperts, setting: Setting, tokens: Size) -> Iterator[PlacedOp]:
    """The operators of a mixture of experts: router, dispatch, one device's experts, combine, and the shared expert.

    With one attention replica, all devices have all tokens, and the results of the devices are summed. With several
    replicas, each token is sent to the devices that hold its experts, and the results are sent back.
    """
    plan, d_model = setting.plan, setting.arch.d_model
    yield setting.plain_matmul("router", tokens, d_model, block.experts, bias=block.router_bias)
    yield PlacedOp(place="route", op=RouteOp(tokens=tokens, experts=block.experts, topk=block.active))
    inner = d_model
    if block.latent_size is not None:
        inner = block.latent_size
        yield setting.matmul("latent_in", tokens, d_model, inner)
    copies = min(block.active, plan.stage_devices)
    if plan.dp > 1:
        for part in setting.collective("all_to_all", tokens * copies * inner, plan.stage_devices):
            yield PlacedOp(place="dispatch", op=part.op)
    op = ExpertsOp(
        tokens=tokens * plan.dp,
        d_model=inner,
        width=-(-block.expert.width // plan.expert_tp),
        experts=block.experts,
        local_experts=-(-block.experts // plan.ep),
        topk=block.active,
        gated=block.expert.gated,
        weights=setting.formats.experts,
        activations=setting.formats.activations,
        bias=block.expert.bias,
        grouped=setting.runtime.fuses("experts"),
    )
    yield PlacedOp(place="experts", op=op)
    if plan.dp > 1:
        for part in setting.collective("all_to_all", tokens * copies * inner, plan.stage_devices):
            yield PlacedOp(place="combine", op=part.op)
    if block.latent_size is not None:
        yield setting.matmul("latent_out", tokens, inner, d_model)
    if block.shared is not None:
        for part in _products(block.shared, setting, tokens):
            yield part.inside("shared")
    if block.shared_gate:
        yield setting.plain_matmul("shared_gate", tokens, d_model, 1)
        yield setting.elementwise("shared_gate", "sigmoid_mul", tokens * d_model)
    if plan.dp == 1 or block.shared is not None:
        yield from setting.collective("all_reduce", tokens * d_model, plan.tp)
