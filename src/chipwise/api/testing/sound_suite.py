"""SoundSuite: proof that the forms of a transcribing model agree, as ``BlockSuite`` proves it of decoders.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chipwise.api.testing.block_suite import TOLERANCE, check_weights, shake
from chipwise.api.testing.specs import check_each
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec, NormKind
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.module import Transcriber, build
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts

FRAMES, BANDS = 24, 5
INT8_TOLERANCE = 0.1  # of the logits' spread: their kernel rounds activations too
NODES = {
    Matmul: {"MatMul"},
    AttentionOp: {"MultiHeadAttention"},
    ConvOp: {"Conv"},
    EmbeddingOp: {"Gather"},
    NormOp: {"LayerNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"},
}


class SoundSuite:
    """The checks; each draws ``examples`` models from :meth:`archs`."""

    examples = 12

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to try; any small one unless overridden."""
        return sound_archs()

    def _each(self, check: Callable[[ArchSpec], None]) -> None:
        check_each(check, self.archs(), examples=self.examples)

    def test_parameters_agree(self) -> None:
        """The count of the spec is that of the module, weight by weight."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' products, filters and attention are those that torch runs."""
        self._each(check_flops)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's logits at every position and has the operators that lowering says."""
        self._each(check_export)

    def test_slices_are_refused(self) -> None:
        """No weights of a transcribing model are those of a smaller one."""
        self._each(check_refused)


@st.composite
def sound_archs(draw: st.DrawFn) -> ArchSpec:
    """Small transcribing models of 24 frames: every stride, stretch, module and feed-forward that is built."""
    d_model = draw(st.sampled_from((8, 16)))
    convs = tuple(frame_conv(d_model, draw(st.sampled_from((1, 2)))) for _ in range(2))
    stem = SoundStem(seconds=FRAMES / 100, rate=100.0, channels=BANDS, convs=convs)
    bias = draw(st.booleans())
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.sampled_from((1, 2)))
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            causal=False,
            chunk=draw(st.sampled_from((None, None, 2, 3, 6))),
        )
        ffn = FeedForward(
            width=draw(st.sampled_from((8, 20))),
            activation=draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
            gated=draw(st.booleans()),
            bias=bias,
        )
        kept = draw(st.sampled_from(("both", "both", "attention", "ffn")))
        conv = draw(st.sampled_from((None, ConvModule(taps=1, norm="layer"), ConvModule(taps=5, norm="layer"))))
        layers.append(
            Layer(attention=attention if kept != "ffn" else None, ffn=ffn if kept != "attention" else None, conv=conv)
        )
    norm: NormKind = draw(st.sampled_from(("layernorm", "layernorm", "rmsnorm")))
    return ArchSpec(
        vocab_size=0,
        d_model=d_model,
        layers=tuple(layers),
        max_tokens=stem.tokens,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        positions="learned",
        head="ctc",
        classes=draw(st.sampled_from((2, 7))),
        stem=stem,
    )


def shaken(arch: ArchSpec, *, seed: int) -> Transcriber:
    """A random model in which norms, biases and positions are not ones and zeros, so that forgetting one shows."""
    return shake(build(arch, seed=seed), seed=seed)


def random_sounds(arch: ArchSpec, *, batch: int) -> torch.Tensor:
    """Random spectrograms (batch, bands, frames)."""
    assert arch.stem is not None
    return torch.randn((batch, *arch.stem.shape), generator=torch.Generator().manual_seed(0))


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes that its spec says."""
    check_weights(Transcriber, arch)


def check_flops(arch: ArchSpec, *, batch: int = 2) -> None:
    """Asserts that the products, filters and attention that lowering counts are those that torch runs."""
    graph = lower(Design(arch=arch), Workload(batch=batch), Phase.PREFILL)
    model = shaken(arch, seed=0)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(random_sounds(arch, batch=batch))
    assert product_flops(graph) == counter.get_total_flops()


def product_flops(graph: OpGraph) -> int:
    """FLOPs of the matrix products, filters and attention in ``graph``, biases left out."""
    total = 0
    for placed in graph:
        if isinstance(op := placed.op, Matmul):
            total += 2 * op.m * op.k * op.n
        elif isinstance(op, ConvOp):
            total += 2 * op.batch * op.positions * op.taps * op.out_channels  # each channel alone
        elif isinstance(op, AttentionOp):
            total += 4 * op.batch * op.heads * op.head_size * op.query_tokens**2
    return total


def check_export(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the exported graph gives the module's logits, for one sound and for three; int8 about the same.

    Also that it has one node for each product, filter, attention, gathering and norm that lowering lists.
    """
    import onnx

    from chipwise.deploy.export.onnx import export
    from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier

    model, sounds = shaken(arch, seed=0), random_sounds(arch, batch=3)
    with torch.no_grad():
        expected = model(sounds).numpy()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        path = export(Design(arch=arch), weights, Path(folder) / "model.onnx")
        for batch in (1, 3):
            found = OnnxClassifier(path, batch=batch).prefill(sounds[:batch].numpy())
            np.testing.assert_allclose(found, expected[:batch], atol=tolerance, rtol=tolerance)
        nodes = onnx.load(path).graph.node
        rounded = export(Design(arch=arch, weights="int8"), weights, Path(folder) / "rounded.onnx")
        near = OnnxClassifier(rounded, batch=3).prefill(sounds.numpy())
        assert np.abs(near - expected).mean() < INT8_TOLERANCE * expected.std()
    graph = lower(Design(arch=arch), Workload(batch=1), Phase.PREFILL)
    for kind, operators in NODES.items():
        listed = sum(isinstance(placed.op, kind) for placed in graph)
        assert listed == sum(node.op_type in operators for node in nodes), kind
    for function, operator in (("sigmoid", "Sigmoid"), ("split", "Split"), ("pad", "Pad")):
        listed = sum(isinstance(placed.op, Elementwise) and placed.op.function == function for placed in graph)
        assert listed == sum(node.op_type == operator for node in nodes), function


def check_refused(arch: ArchSpec) -> None:
    """Asserts that cutting is refused in one line."""
    with pytest.raises(SpecError, match="transcribing models share no weights"):
        cuts(arch, arch)
