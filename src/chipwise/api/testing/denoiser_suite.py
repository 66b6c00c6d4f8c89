"""DenoiserSuite: proof that the forms of a denoiser agree, as ``ImageSuite`` proves it of image classifiers.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chipwise.api.testing.block_suite import TOLERANCE, check_weights, shake
from chipwise.api.testing.image_suite import ImageSuite, image_archs, product_flops, wider
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.module import DenoisingTransformer, build, draw
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts
from chipwise.model.walk.weights import weight_shapes

NODES = {
    Matmul: {"MatMul"},
    AttentionOp: {"MultiHeadAttention"},
    NormOp: {"LayerNormalization"},
    EmbeddingOp: {"Gather"},
}


class DenoiserSuite(ImageSuite):
    """The checks; each draws ``examples`` models from :meth:`archs`."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to try; any small one unless overridden."""
        return denoiser_archs()

    def test_parameters_agree(self) -> None:
        """The count of the spec is that of the module, weight by weight."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' FLOPs are those that torch counts."""
        self._each(check_flops)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's velocities, and its images; it has the operators that lowering says."""
        self._each(check_export)

    def test_slices_agree(self) -> None:
        """Weights cut from a larger model's are a model with the larger's values."""
        self._each(check_slice)


@st.composite
def denoiser_archs(draw_from: st.DrawFn) -> ArchSpec:
    """Small denoisers of 16 x 16 pixels: every patch, square and feed-forward; with shortcuts, guided, or neither."""
    arch = draw_from(
        image_archs().filter(lambda arch: arch.stem is not None and arch.stem.axes == 2 and arch.pooling == "mean")
    )
    assert arch.stem is not None
    stem = replace(arch.stem, convs=(), prefix_tokens=0)
    placed = {"shift": False, "relative_buckets": 0}
    layers = tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, **placed)) for layer in arch.layers
    )
    shortcut = draw_from(st.booleans())
    return replace(
        arch,
        stem=stem,
        layers=layers,
        positions="learned",
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=False,
        norm_weight=False,
        norm_eps=1e-6,
        head="none",
        classes=0,
        pooling="first",
        denoiser=Denoiser(
            labels=draw_from(st.sampled_from((1, 5))),
            frequencies=draw_from(st.sampled_from((6, 16))),
            steps=draw_from(st.sampled_from((1, 4) if shortcut else (1, 3))),
            shortcut=shortcut,
            guidance=draw_from(st.sampled_from((1.0,) if shortcut else (1.0, 2.5))),
            solver=draw_from(st.sampled_from(("euler",) if shortcut else ("euler", "multistep"))),
            shift=draw_from(st.sampled_from((1.0,) if shortcut else (1.0, 2.0))),
        ),
    )


def shaken(arch: ArchSpec, *, seed: int) -> DenoisingTransformer:
    """A denoiser none of whose parameters is at its first value: the modulations and the head would hide the rest."""
    return shake(build(arch, seed=seed), seed=seed + 1, by=0.2)


def asked(arch: ArchSpec, *, batch: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random images (batch, C, Y, X), times, labels and step sizes, each (batch,)."""
    assert arch.stem is not None
    assert arch.denoiser is not None
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((batch, *arch.stem.shape), generator=generator)
    times, sizes = torch.rand((2, batch), generator=generator)
    return images, times, torch.arange(batch) % arch.denoiser.labels, sizes


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes that its spec says."""
    check_weights(DenoisingTransformer, arch)


def check_flops(arch: ArchSpec, *, batch: int = 2) -> None:
    """Asserts that the products and attention that lowering counts are those that torch runs."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        shaken(arch, seed=0)(*asked(arch, batch=batch))
    assert product_flops(lower(Design(arch=arch), Workload(batch=batch), Phase.PREFILL)) == counter.get_total_flops()


def check_export(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the exported graph gives the module's velocities, and that its steps make the module's images.

    Also that it has one node for each product, attention, norm and table that lowering lists.
    """
    import onnx
    import onnxruntime as ort

    from chipwise.deploy.export.onnx import export
    from chipwise.deploy.runtimes.onnxruntime_denoiser import OnnxDenoiser

    model, (images, times, labels, sizes) = shaken(arch, seed=0), asked(arch, batch=3)
    assert arch.denoiser is not None
    with torch.no_grad():
        expected = model(images, times, labels, sizes).numpy()
        drawn = draw(model, images, labels, arch.denoiser).numpy()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        path = export(Design(arch=arch), weights, Path(folder) / "model.onnx")
        told = {"time": times[:, None].numpy(), "step": sizes[:, None].numpy()}
        feeds = {"image": images.numpy(), "label": labels.numpy()} | {n: told[n] for n in arch.denoiser.told}
        found = ort.InferenceSession(str(path)).run(["velocity"], feeds)[0]
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)
        made = OnnxDenoiser(path, batch=3).draw(images.numpy(), labels.numpy())
        np.testing.assert_allclose(made, drawn, atol=10 * tolerance, rtol=10 * tolerance)
        nodes = onnx.load(path).graph.node
    graph = lower(Design(arch=arch), Workload(batch=1), Phase.PREFILL)
    for kind, operators in NODES.items():
        listed = sum(isinstance(placed.op, kind) for placed in graph)
        assert listed == sum(node.op_type in operators for node in nodes)


def check_slice(arch: ArchSpec) -> None:
    """Asserts that the weights cut from a larger denoiser are a denoiser of ``arch``, with the larger's values."""
    whole = wider(arch)
    weights = dict(shaken(whole, seed=0).state_dict())
    found = {name: cut.of(weights) for name, cut in cuts(arch, whole).items()}
    assert {name: tuple(value.shape) for name, value in found.items()} == weight_shapes(arch)
    alone = DenoisingTransformer(arch)
    alone.load_state_dict(found)
    grown = cuts(whole, whole)
    assert all(torch.equal(cut.of(weights), weights[name]) for name, cut in grown.items())
    end, wide = "modulations.end.bias", whole.d_model  # shifts, then scales
    assert torch.equal(found[end][arch.d_model :], weights[end][wide : wide + arch.d_model])
    with torch.no_grad():
        assert torch.isfinite(alone.eval()(*asked(arch, batch=2))).all()
