"""Feed-forward as ONNX nodes. Each activation is one node."""

from __future__ import annotations

from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder

ACTIVATIONS: dict[str, tuple[str, dict[str, float | str]]] = {
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {"domain": MICROSOFT}),
    "gelu_tanh": ("FastGelu", {"domain": MICROSOFT}),
    "silu": ("QuickGelu", {"domain": MICROSOFT, "alpha": 1.0}),  # x * sigmoid(alpha * x)
}


def add_ffn(
    graph: GraphBuilder,
    block: FeedForward,
    *,
    layer: int,
    key: str,
    x: str,
    d_model: int,
    joined: bool = False,
    group: str = "",
) -> str:
    """The block's output, without the residual; ``joined`` fuses the gate and up projections into one.

    A block with groups becomes one feed-forward per group of channels. ``group`` is the suffix of all names in one
    group, such as ``.0``.
    """
    place = f"layers.{layer}.ffn"
    if block.groups > 1:
        graph.node("Split", [x], [f"{place}.part.{i}" for i in range(block.groups)], axis=-1, num_outputs=block.groups)
        made = [
            add_ffn(
                graph,
                block.one_group(),
                layer=layer,
                key=key,
                x=f"{place}.part.{i}",
                d_model=d_model // block.groups,
                group=f".{i}",
            )
            for i in range(block.groups)
        ]
        return graph.node("Concat", made, f"{place}.joined", axis=-1)

    def into(name: str, *parts: str) -> str:
        joined_as, rows = f"{key}.{name}{group}", dict.fromkeys((f"{key}.{part}{group}" for part in parts), block.width)
        return graph.projection(f"{place}.{name}{group}", x, k=d_model, parts=rows, key=joined_as, bias=block.bias)

    gate: str | None = None
    if block.gated and joined:
        gate, up = f"{place}.gate", f"{place}.up"
        graph.node("Split", [into("into", "gate", "up")], [gate, up], axis=-1, num_outputs=2)
    else:
        gate = into("gate", "gate") if block.gated else None
        up = into("up", "up")
    op, attributes = ACTIVATIONS[block.activation]
    hidden = graph.node(op, [up if gate is None else gate], f"{place}.activation{group}", **attributes)
    if gate is not None:
        hidden = graph.node("Mul", [hidden, up], f"{place}.hidden{group}")
    down = {f"{key}.down{group}": d_model}
    return graph.projection(f"{place}.down{group}", hidden, k=block.width, parts=down, bias=block.bias)
