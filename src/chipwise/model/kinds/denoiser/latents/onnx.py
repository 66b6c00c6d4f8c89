"""The latent decoder as ONNX nodes: a separate graph, which runs once after all denoising steps."""

from __future__ import annotations

from onnx import TensorProto

from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.denoiser.latents.spec import KERNEL, Latents
from chipwise.model.kinds.image.stem import ImageStem


def add_decoder(graph: GraphBuilder, latents: Latents, stem: ImageStem) -> None:
    """Adds the nodes from the input ``latents`` (B, L, y, x) to the output ``pixels`` (B, C, Y, X)."""
    x = graph.input("latents", TensorProto.FLOAT, ["batch", *stem.shape])
    for i, (into, out) in enumerate(latents.shapes(stem.channels)):
        if i:
            x = graph.node("Gelu", [x], "decoder.activation", domain=MICROSOFT)
        key = f"decoder.convs.{i}"
        weight = graph.tensor(f"{key}.weight", out, into, KERNEL, KERNEL)
        sizes = {"kernel_shape": [KERNEL] * 2, "pads": [KERNEL // 2] * 4}
        x = graph.node("Conv", [x, weight, graph.tensor(f"{key}.bias", out)], key, **sizes)
    graph.node("DepthToSpace", [x], "pixels", blocksize=latents.factor, mode="CRD")
    graph.output("pixels", ["batch", latents.channels, *[latents.factor * stem.image_size] * 2])
