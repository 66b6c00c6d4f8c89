"""The decoder of latents as ONNX nodes: a separate graph, which runs once after all steps."""

from __future__ import annotations

from onnx import TensorProto

from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.denoiser.latents.spec import KERNEL, Latents
from chipwise.model.kinds.image.stem import ImageStem


def add_decoder(graph: GraphBuilder, latents: Latents, stem: ImageStem) -> None:
    """The output ``pixels`` (B, C, Y, X) from the input ``latents`` (B, L, y, x)."""
    x = graph.input("latents", TensorProto.FLOAT, ["batch", *stem.shape])
    for i, (into, out) in enumerate(latents.shapes(stem.channels)):
        if i:
            x = graph.node("Gelu", [x], "decoder.activation", domain=MICROSOFT)
        key = f"decoder.convs.{i}"
        shape = (out, into, KERNEL, KERNEL)
        weight = graph.store(f"{key}.weight", lambda key=key, shape=shape: graph.weight(f"{key}.weight", shape))  # type: ignore[misc]
        sizes = {"kernel_shape": [KERNEL] * 2, "pads": [KERNEL // 2] * 4}
        x = graph.node("Conv", [x, weight, graph.vector(f"{key}.bias", out)], key, **sizes)
    graph.node("DepthToSpace", [x], "pixels", blocksize=latents.factor, mode="CRD")
    graph.output("pixels", ["batch", latents.channels, *[latents.factor * stem.image_size] * 2])
