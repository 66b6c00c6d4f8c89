"""FormSuite: checks that weights, operators, torch module and ONNX graph of a model of any kind agree.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them::

    class TestMyKind(FormSuite):
        def archs(self):
            return image_archs()

Each kind has a subclass that overrides the attributes and methods in which it differs. Decoders, which have a cache,
are checked by ``BlockSuite``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chipwise.core.arrays import AnyArray
from chipwise.core.dtypes import Size
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.kinds.ranking.stem import FUSIONS, RankingStem
from chipwise.model.kinds.table import form_of
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.module import build, module_of
from chipwise.model.walk.slicing import cuts, kept_layers
from chipwise.model.walk.weights import weight_shapes
from support.block_suite import TOLERANCE, check_weights, shake
from support.models import check_each

INT8_TOLERANCE = 0.1  # relative to the outputs' spread; int8 kernels also round activations
NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"}
Inputs = tuple[torch.Tensor, ...]
Pairs = Iterator[tuple[AnyArray, AnyArray]]
Nodes = tuple[tuple[type | tuple[type, ...], set[str]], ...]
NODES: Nodes = (
    (AttentionOp, {"MultiHeadAttention"}),
    (RequestAttentionOp, {"FusedMatMul"}),
    (ConvOp, {"Conv"}),
    (PoolOp, {"ReduceMean"}),
    ((EmbeddingOp, EmbeddingBagOp), {"Gather"}),
    (NormOp, NORMS),
)


class FormSuite:
    """The checks; each runs on ``examples`` models from :meth:`archs`."""

    examples = 12
    functions: tuple[tuple[str, str], ...] = ()  # which ONNX operators correspond to elementwise functions
    exact = True  # whether torch computes exactly what lowering counts; False if lowering drops positions
    shares = True  # whether smaller models can be cut from larger ones; otherwise cutting raises an error

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to test, all of one kind."""
        raise NotImplementedError("override `archs`")

    def counted(self, arch: ArchSpec, batch: int) -> tuple[ArchSpec, Size]:
        """A variant of ``arch`` for which torch computes what lowering lists, and torch's additional FLOPs.

        Torch computes all positions up to the head, while lowering drops some, so the variant uses mean pooling.
        """
        if self.exact and isinstance(arch.head, Classes):
            return replace(arch, head=replace(arch.head, pooling="mean")), 0
        return arch, 0

    def designs(self, arch: ArchSpec) -> list[Design]:
        """The designs of a model to export."""
        return [Design(arch=arch)]

    def requests(self, arch: ArchSpec) -> ArchSpec:
        """The model, adapted to the requests whose outputs are compared."""
        return arch

    def runs(self, path: Path, arch: ArchSpec, model: nn.Module, inputs: Inputs, expected: AnyArray) -> Pairs:
        """Pairs of an exported file's outputs and the expected outputs, for one request and for three."""
        for batch in (1, 3):
            given = _runtime().OnnxClassifier(path, batch=batch).prefill(*(each[:batch].numpy() for each in inputs))
            yield given, expected[:batch]

    def _each(self, check: Callable[[ArchSpec], None]) -> None:
        check_each(check, self.archs(), examples=self.examples)

    def test_parameters_agree(self) -> None:
        """Spec and module have the same weights."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' FLOPs equal those that torch counts (unless lowering drops positions)."""
        self._each(self.check_flops)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's outputs and has the operators that lowering says."""
        self._each(self.check_export)

    def test_slices_agree(self) -> None:
        """Weights cut from a larger model keep its values, or cutting raises a one-line error."""
        self._each(check_slice if self.shares else check_refused)

    def check_flops(self, arch: ArchSpec, batch: int = 2) -> None:
        """Asserts that lowering counts the same products, convolutions and attention as torch."""
        whole, besides = self.counted(arch, batch)
        model = shaken(whole, seed=0)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(*inputs_of(arch, batch=batch))
        listed, found = _listed_flops(whole, batch) + besides, counter.get_total_flops()
        assert listed == found if self.exact else listed <= found
        assert _listed_flops(arch, batch) <= listed

    def check_export(self, arch: ArchSpec, tolerance: float = TOLERANCE) -> None:
        """Asserts that the exported graph gives the module's outputs for several batches (for int8, approximately).

        It must also have one node for each product, convolution, attention, mean, table and norm that lowering lists.
        """
        import onnx

        from chipwise.deploy.export.onnx import export

        model, inputs = shaken(arch, seed=0), inputs_of(self.requests(arch), batch=3)
        with torch.no_grad():
            expected = model(*inputs).numpy()
        weights = {name: value.numpy() for name, value in model.state_dict().items()}
        with TemporaryDirectory() as folder:
            for design in self.designs(arch):
                path = export(design, weights, Path(folder) / "model.onnx")
                for found, wanted in self.runs(path, arch, model, inputs, expected):
                    if design.weights == "fp32":
                        np.testing.assert_allclose(found, wanted, atol=tolerance, rtol=tolerance)
                    else:
                        near = INT8_TOLERANCE * max(1.0, float(np.abs(expected).max()))
                        assert np.abs(found - wanted).mean() < near
                if design.weights == "fp32":
                    names = [node.op_type for node in onnx.load(path).graph.node]
                    self._check_nodes(names, lower(design, Workload(), Phase.PREFILL))

    def _check_nodes(self, names: list[str], graph: OpGraph) -> None:
        def listed(kind: type | tuple[type, ...]) -> int:
            return sum(isinstance(placed.op, kind) for placed in graph)

        scores = listed(RequestAttentionOp)  # the product with values is a separate node
        assert names.count("MatMul") == listed(Matmul) + scores
        for kind, operators in NODES:
            assert listed(kind) == sum(name in operators for name in names), kind
        for function, operator in self.functions:
            made = (placed.op for placed in graph if isinstance(placed.op, Elementwise))
            assert sum(op.function == function for op in made) == names.count(operator), function


class QuestionSuite(FormSuite):
    """For models that answer questions about images; lowering drops positions that torch computes."""

    exact = shares = False


class SoundSuite(FormSuite):
    """For speech recognisers: also in int8, since a sound has few positions."""

    functions = (("sigmoid", "Sigmoid"), ("split", "Split"), ("pad", "Pad"))
    shares = False

    def designs(self, arch: ArchSpec) -> list[Design]:
        """Designs in int8 and in FP32."""
        return [Design(arch=arch, weights="int8"), Design(arch=arch)]


class DenoiserSuite(FormSuite):
    """For denoisers: one pass, and images after several steps."""

    def runs(self, path: Path, arch: ArchSpec, model: Any, inputs: Inputs, expected: AnyArray) -> Pairs:
        """Pairs of velocities, and of generated images."""
        from chipwise.deploy.runtimes.onnx_session import load
        from chipwise.deploy.runtimes.onnxruntime_denoiser import OnnxDenoiser

        head = arch.head_as(Denoiser)
        images, times, labels = (each.numpy() for each in inputs)
        feeds = {"image": images, "label": labels, "time": times[:, None]}
        yield load(path)[0].run(["velocity"], feeds)[0], expected
        drawn = draw(model, inputs[0], inputs[2], head).numpy()
        yield OnnxDenoiser(path, batch=3).draw(images, labels) / 10, drawn / 10


class RankingSuite(FormSuite):
    """For ranking models: several numbers of candidates, int8, and every kind of fusion."""

    def counted(self, arch: ArchSpec, batch: int) -> tuple[ArchSpec, Size]:
        """The model with one more attention, in which lowering leaves out the history's scores, values and output."""
        stem = arch.stem_as(RankingStem)
        last = next(layer.attention for layer in reversed(arch.layers) if layer.attention is not None)
        besides = batch * stem.history * last.query_width * (4 * stem.history + 2 * arch.d_model)
        return replace(arch, layers=(*arch.layers, Layer(attention=last, ffn=None))), besides

    def designs(self, arch: ArchSpec) -> list[Design]:
        """Designs in int8, and with no fusion, the usual fusions and all fusions."""
        fused = (Design(arch=arch, fused=names) for names in ((), USUALLY_FUSED, FUSIONS))
        return [Design(arch=arch, weights="int8"), *fused]

    def requests(self, arch: ArchSpec) -> ArchSpec:
        """The model for requests with 9 candidates."""
        return with_candidates(arch, 9)

    def runs(self, path: Path, arch: ArchSpec, model: nn.Module, inputs: Inputs, expected: AnyArray) -> Pairs:
        """Pairs of scores for one request, for three requests, and for fewer candidates."""
        for batch, count in ((1, 9), (3, 4), (3, 1)):
            given = inputs[0].numpy()[:batch, : arch.stem_as(RankingStem).history + count]
            yield _runtime().OnnxRanker(path, batch=batch, candidates=count).prefill(given), expected[:batch, :count]

    def test_candidates_do_not_see_one_another(self) -> None:
        """Candidates get the same scores as when scored one by one, and the history does not attend to them."""
        self._each(check_alone)


def _runtime() -> ModuleType:
    from chipwise.deploy.runtimes import onnxruntime

    return onnxruntime


def shaken(arch: ArchSpec, *, seed: int) -> Any:
    """A random model whose norms, biases and positions differ from ones and zeros, so that omitting one is detected.

    All other parameters change too, because a denoiser's initial modulations and head (zeros) would hide the rest.
    """
    return shake(build(arch, seed=seed), seed=seed + 1, by=0.2)


def inputs_of(arch: ArchSpec, *, batch: int, seed: int = 0) -> Inputs:
    """A batch of random inputs of a model's module."""
    found = form_of(arch).inputs(arch, np.random.default_rng(seed), batch)
    return tuple(torch.from_numpy(each) for each in found)


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes that its spec says."""
    check_weights(module_of, arch)


def _listed_flops(arch: ArchSpec, batch: int) -> Size:
    return product_flops(lower(Design(arch=arch), Workload(batch=batch), Phase.PREFILL))


def product_flops(graph: OpGraph) -> Size:
    """FLOPs of the matrix products, convolutions and attention in ``graph``, without biases."""
    total: Size = 0
    for placed in graph:
        if isinstance(op := placed.op, Matmul):
            total += 2 * op.m * op.k * op.n
        elif isinstance(op, ConvOp):
            total += 2 * op.batch * op.positions * op.in_channels // op.groups * op.taps * op.out_channels
        elif isinstance(op, AttentionOp):
            total += 4 * op.batch * op.heads * op.head_size * op.pairs()
        elif isinstance(op, RequestAttentionOp):
            total += 4 * op.batch * op.heads * op.head_size * op.queries * op.history
    return total


def check_alone(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that candidates get the same scores as one by one, and that the history does not attend to them."""
    model, (requests,) = shaken(arch, seed=0), inputs_of(arch, batch=2)
    history = model.history
    with torch.no_grad():
        together = model(requests)
        for number in range(together.shape[1]):
            one = torch.cat((requests[:, :history], requests[:, history + number, None]), dim=1)
            torch.testing.assert_close(model(one)[:, 0], together[:, number], atol=tolerance, rtol=tolerance)


def check_refused(arch: ArchSpec) -> None:
    """Asserts that cutting models of this kind from one another raises an error."""
    with pytest.raises(SpecError, match="cannot be cut from larger ones"):
        cuts(arch, arch)


def check_slice(arch: ArchSpec) -> None:
    """Asserts that weights cut from a larger model fit ``arch`` and keep the larger model's values."""
    whole = wider(arch)
    weights = dict(shaken(whole, seed=0).state_dict())
    found = {name: cut.of(weights) for name, cut in cuts(arch, whole).items()}
    assert {name: tuple(value.shape) for name, value in found.items()} == weight_shapes(arch)
    alone = module_of(arch)
    alone.load_state_dict(found)
    assert all(torch.equal(cut.of(weights), weights[name]) for name, cut in cuts(whole, whole).items())
    if (end := "modulations.end.bias") in found:  # the bias holds shifts, then scales
        assert torch.equal(found[end][arch.d_model :], weights[end][whole.d_model : whole.d_model + arch.d_model])
    with torch.no_grad():
        assert torch.isfinite(alone.eval()(*inputs_of(arch, batch=2))).all()
    assert arch.parameters() < whole.parameters()


def wider(arch: ArchSpec) -> ArchSpec:
    """A model for the same requests with all other sizes larger and twice the depth."""
    kept = kept_layers(len(arch.layers), 2 * len(arch.layers))  # the other layers repeat the one before them
    repeated = [arch.layers[bisect(kept, i) - 1] for i in range(2 * len(arch.layers))]
    return replace(arch, d_model=arch.d_model + 8, stem=_wider_stem(arch.stem), layers=tuple(map(_wider, repeated)))


def _wider_stem(stem: Any) -> Any:
    convs, width = getattr(stem, "convs", ()), getattr(stem, "width", 0)
    changes = {"convs": tuple(channels + 2 for channels in convs)} if convs else {}
    return replace(stem, **(changes | ({"width": width + 2} if width else {})))


def _wider(layer: Layer) -> Layer:
    attention, ffn = layer.attention, layer.ffn
    if attention is not None:
        heads = {"heads": 2 * attention.heads, "kv_heads": 2 * attention.kv_heads}
        attention = replace(attention, head_size=attention.head_size + 8, **heads)
    return replace(layer, attention=attention, ffn=ffn and replace(ffn, width=ffn.width + 12))
