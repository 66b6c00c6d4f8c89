"""Feed-forward as ONNX nodes. Each activation is one node."""

from __future__ import annotations

from typing import Any

from chipwise.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.spec import FeedForward

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {"domain": MICROSOFT}),
    "gelu_tanh": ("FastGelu", {"domain": MICROSOFT}),
    "silu": ("QuickGelu", {"domain": MICROSOFT, "alpha": 1.0}),  # x * sigmoid(alpha * x)
}


def add_ffn(
    graph: GraphBuilder, block: FeedForward, *, layer: int, key: str, x: str, d_model: int, before: str = ""
) -> str:
    """The block's output, without the residual; ``before`` stands in front of the layer's names."""
    place = f"{before}layers.{layer}.ffn"

    def into(name: str) -> str:
        return graph.projection(
            f"{place}.{name}",
            x,
            parts=[f"{key}.{name}"],
            key=f"{key}.{name}",
            k=d_model,
            widths=[block.width],
            bias=block.bias,
        )

    gate = into("gate") if block.gated else None
    up = into("up")
    op, attributes = ACTIVATIONS[block.activation]
    hidden = graph.node(op, [up if gate is None else gate], f"{place}.activation", **attributes)
    if gate is not None:
        hidden = graph.node("Mul", [hidden, up], f"{place}.hidden")
    return graph.projection(
        f"{place}.down",
        hidden,
        parts=[f"{key}.down"],
        key=f"{key}.down",
        k=block.width,
        widths=[d_model],
        bias=block.bias,
    )
