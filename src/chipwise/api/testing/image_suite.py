"""ImageSuite: proof that the forms of an image classifier agree, as ``BlockSuite`` proves it of decoders.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

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
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.module import ImageClassifier, build
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.spec import bias_rows
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts, kept_layers
from chipwise.model.walk.weights import weight_shapes

NODES = {
    Matmul: {"MatMul"},
    AttentionOp: {"MultiHeadAttention"},
    ConvOp: {"Conv"},
    PoolOp: {"ReduceMean"},
}


class ImageSuite:
    """The checks; each draws ``examples`` models from :meth:`archs`."""

    examples = 12

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to try; any small one unless overridden."""
        return image_archs()

    def _each(self, check: Callable[[ArchSpec], None]) -> None:
        check_each(check, self.archs(), examples=self.examples)

    def test_parameters_agree(self) -> None:
        """The count of the spec is that of the module, weight by weight."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' FLOPs are those that torch counts; fewer where only the class token is carried to the end."""
        self._each(check_flops)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's logits and has the operators that lowering says."""
        self._each(check_export)

    def test_slices_agree(self) -> None:
        """Cut from a larger model's weights, the model computes what it computes alone."""
        self._each(check_slice)


@st.composite
def image_archs(draw: st.DrawFn) -> ArchSpec:
    """Small classifiers of 16 x 16 pixels or 16 frames: every stem, pooling, window and feed-forward that is built."""
    patch = draw(st.sampled_from((2, 4, 8)))
    convs = tuple(draw(st.lists(st.sampled_from((3, 5)), max_size={2: 1, 4: 2, 8: 2}[patch])))
    pooling: Literal["first", "mean"] = draw(st.sampled_from(("first", "mean")))
    first = pooling == "first" or draw(st.booleans())
    stem = ImageStem(
        axes=draw(st.sampled_from((1, 2))),
        image_size=16,
        patch=patch,
        channels=draw(st.sampled_from((1, 3))),
        convs=convs,
        bias=draw(st.booleans()),
        prefix_tokens=int(first),
    )
    squares = [None] if first or stem.axes == 1 else [None, *(size for size in (1, 2, 3, 4) if size <= stem.grid)]
    bias, positions = draw(st.booleans()), draw(st.sampled_from(("learned", "biases", "none")))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        square = draw(st.sampled_from(squares))
        attention = Attention(
            heads=(heads := draw(st.sampled_from((1, 2)))),
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            causal=False,
            square=square,
            shift=square is not None and draw(st.booleans()),
            relative_buckets=bias_rows(stem, square) if positions == "biases" and draw(st.booleans()) else 0,
        )
        ffn = FeedForward(
            width=draw(st.sampled_from((8, 20))),
            activation=draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
            gated=draw(st.booleans()),
            bias=bias,
        )
        kept = draw(st.sampled_from(("both", "both", "attention", "ffn")))
        layers.append(Layer(attention=attention if kept != "ffn" else None, ffn=ffn if kept != "attention" else None))
    norm: NormKind = draw(st.sampled_from(("layernorm", "layernorm", "rmsnorm")))
    return ArchSpec(
        vocab_size=0,
        d_model=draw(st.sampled_from((8, 16))),
        layers=tuple(layers),
        max_tokens=stem.tokens,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        positions="learned" if positions == "learned" else "none",
        head="classes",
        classes=draw(st.sampled_from((2, 5))),
        stem=stem,
        pooling=pooling,
    )


@st.composite
def question_archs(draw: st.DrawFn) -> ArchSpec:
    """Small models of questions about images: patches or convolutions, tokens apart, averaged or joined."""
    arch = draw(image_archs().filter(lambda arch: arch.stem is not None and arch.stem.axes == 2))
    assert isinstance(arch.stem, ImageStem)
    stem = replace(arch.stem, prefix_tokens=0, bias=False)
    merge = draw(st.sampled_from(("none", "mean", "join"))) if stem.grid % 2 == 0 else "none"
    projector = Projector(
        widths=(arch.d_model,) * 2, pool=2 if merge == "mean" else 1, join=2 if merge == "join" else 1
    )
    question = Question(words=draw(st.sampled_from((7, 30))), tokens=draw(st.sampled_from((1, 5))))
    plain = {"square": None, "shift": False, "relative_buckets": 0}
    layers = tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, **plain)) for layer in arch.layers
    )
    tokens = projector.tokens_of(stem.grid, 2) + question.tokens
    return replace(
        arch,
        stem=stem,
        layers=layers,
        projector=projector,
        question=question,
        pooling="last",
        positions="learned",
        max_tokens=tokens,
    )


def crossing_archs() -> st.SearchStrategy[ArchSpec]:
    """Small models of questions some or all of whose layers see the image by cross-attention."""
    return st.builds(crossed, question_archs(), st.lists(st.booleans(), min_size=3, max_size=3))


def crossed(arch: ArchSpec, which: Sequence[bool] = ()) -> ArchSpec:
    """``arch`` with cross-attention in the layers that ``which`` says, by number, or in all if it says none."""
    block = Attention(heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
    chosen = [*which, *(False,) * len(arch.layers)][: len(arch.layers)]
    each = chosen if any(chosen) else [True] * len(arch.layers)
    layers = (replace(layer, cross=block if has else None) for layer, has in zip(arch.layers, each, strict=True))
    return replace(arch, layers=tuple(layers))


def shaken(arch: ArchSpec, *, seed: int) -> ImageClassifier:
    """A random classifier in which norms, biases and positions are not ones and zeros, so that forgetting one shows."""
    return shake(build(arch, seed=seed), seed=seed)


def inputs_of(arch: ArchSpec, *, batch: int) -> tuple[torch.Tensor, ...]:
    """Random images, and words of questions where the model answers them."""
    images = random_images(arch, batch=batch)
    if arch.question is None:
        return (images,)
    generator = torch.Generator().manual_seed(1)
    return images, torch.randint(0, arch.question.words, (batch, arch.question.tokens), generator=generator)


def random_images(arch: ArchSpec, *, batch: int, seed: int = 0) -> torch.Tensor:
    """Random images (batch, C, Y, X), or signals (batch, C, X)."""
    assert arch.stem is not None
    return torch.randn((batch, *arch.stem.shape), generator=torch.Generator().manual_seed(seed))


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes that its spec says."""
    check_weights(ImageClassifier, arch)


def check_flops(arch: ArchSpec, *, batch: int = 2) -> None:
    """Asserts that the products, convolutions and attention that lowering counts are those that torch runs."""
    pooled = arch if arch.question is not None else replace(arch, pooling="mean")
    graph = lower(Design(arch=pooled), Workload(batch=batch), Phase.PREFILL)
    model = shaken(pooled, seed=0)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*inputs_of(arch, batch=batch))
    found, uncut = counter.get_total_flops(), product_flops(graph)
    assert uncut == found if arch.question is None else uncut <= found
    if arch.pooling == "first":
        assert product_flops(lower(Design(arch=arch), Workload(batch=batch), Phase.PREFILL)) <= product_flops(graph)


def product_flops(graph: OpGraph) -> int:
    """FLOPs of the matrix products, convolutions and attention in ``graph``, biases left out."""
    total = 0
    for placed in graph:
        if isinstance(op := placed.op, Matmul):
            total += 2 * op.m * op.k * op.n
        elif isinstance(op, ConvOp):
            total += 2 * op.batch * op.positions * op.in_channels * op.taps * op.out_channels
        elif isinstance(op, AttentionOp):
            total += 4 * op.batch * op.heads * op.head_size * op.pairs()
    return total


def check_export(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the exported graph gives the module's logits, for one image and for three.

    Also that it has one node for each product, convolution, attention and mean that lowering lists.
    """
    import onnx

    from chipwise.deploy.export.onnx import export
    from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier

    model, inputs = shaken(arch, seed=0), inputs_of(arch, batch=3)
    with torch.no_grad():
        expected = model(*inputs).numpy()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        path = export(Design(arch=arch), weights, Path(folder) / "model.onnx")
        for batch in (1, 3):
            found = OnnxClassifier(path, batch=batch).prefill(*(each[:batch].numpy() for each in inputs))
            np.testing.assert_allclose(found, expected[:batch], atol=tolerance, rtol=tolerance)
        nodes = onnx.load(path).graph.node
    graph = lower(Design(arch=arch), Workload(batch=1), Phase.PREFILL)
    for kind, operators in NODES.items():
        listed = sum(isinstance(placed.op, kind) for placed in graph)
        assert listed == sum(node.op_type in operators for node in nodes)


def check_slice(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the weights cut from a larger classifier are a classifier of ``arch``, with the larger's values."""
    if arch.question is not None:
        with pytest.raises(SpecError, match="question"):
            cuts(arch, arch)
        return
    whole = wider(arch)
    weights = dict(shaken(whole, seed=0).state_dict())
    found = {name: cut.of(weights) for name, cut in cuts(arch, whole).items()}
    assert {name: tuple(value.shape) for name, value in found.items()} == weight_shapes(arch)
    alone = ImageClassifier(arch)
    alone.load_state_dict(found)
    grown = cuts(whole, whole)
    assert all(torch.equal(cut.of(weights), weights[name]) for name, cut in grown.items())
    with torch.no_grad():
        logits = alone.eval()(random_images(arch, batch=2))
    assert torch.isfinite(logits).all()
    assert arch.parameters() < whole.parameters()


def wider(arch: ArchSpec) -> ArchSpec:
    """A classifier of the same images and patches that is larger in everything else that has a size."""
    assert arch.stem is not None
    stem = replace(arch.stem, convs=tuple(channels + 2 for channels in arch.stem.convs))
    return replace(arch, d_model=arch.d_model + 8, stem=stem, layers=wider_layers(arch))


def wider_layers(arch: ArchSpec) -> tuple[Layer, ...]:
    """Twice as many layers, with larger attention and feed-forwards."""
    kept = kept_layers(len(arch.layers), 2 * len(arch.layers))  # the others repeat the one before
    repeated = [arch.layers[bisect(kept, i) - 1] for i in range(2 * len(arch.layers))]
    return tuple(
        replace(
            layer,
            attention=layer.attention
            and replace(
                layer.attention,
                heads=2 * layer.attention.heads,
                kv_heads=2 * layer.attention.kv_heads,
                head_size=layer.attention.head_size + 8,
            ),
            ffn=layer.ffn and replace(layer.ffn, width=layer.ffn.width + 12),
        )
        for layer in repeated
    )
