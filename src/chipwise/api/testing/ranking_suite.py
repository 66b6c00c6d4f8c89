"""RankingSuite: proof that the forms of a ranking model agree, as ``BlockSuite`` proves it of decoders.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from chipwise.api.testing.block_suite import TOLERANCE, check_weights, shake
from chipwise.api.testing.image_suite import wider_layers
from chipwise.api.testing.specs import check_each
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import FUSIONS, USUALLY_FUSED, Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.kinds.ranking.module import Ranker, build
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts
from chipwise.model.walk.weights import weight_shapes

ITEMS, TAGS = 30, 7
FUSED = ((), USUALLY_FUSED, FUSIONS)  # nothing, what is usual, and all
INT8_TOLERANCE = 0.1  # of the scores' spread: their kernel rounds activations too


class RankingSuite:
    """The checks; each draws ``examples`` models from :meth:`archs`."""

    examples = 12

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to try; any small one unless overridden."""
        return ranking_archs()

    def _each(self, check: Callable[[ArchSpec], None]) -> None:
        check_each(check, self.archs(), examples=self.examples)

    def test_parameters_agree(self) -> None:
        """The count of the spec is that of the module, weight by weight."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' products are those that torch runs, where the last attention carries all positions on."""
        self._each(check_flops)

    def test_candidates_do_not_see_one_another(self) -> None:
        """A candidate's score is what it is alone; a history does not see its candidates."""
        self._each(check_alone)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's scores for any number of candidates, and has lowering's operators."""
        self._each(check_export)

    def test_slices_agree(self) -> None:
        """Cut from a larger model's weights, the model is whole and computes finite scores."""
        self._each(check_slice)


@st.composite
def ranking_archs(draw: st.DrawFn) -> ArchSpec:
    """Small ranking models: every table, attention, feed-forward and head that is built."""
    bag = draw(st.sampled_from((0, 0, 1, 3)))
    stem = RankingStem(
        items=ITEMS,
        history=draw(st.sampled_from((1, 2, 5))),
        candidates=draw(st.sampled_from((1, 4))),
        width=draw(st.sampled_from((0, 6))),
        tags=TAGS if bag else 0,
        bag=bag,
        bias=draw(st.booleans()),
    )
    bias = draw(st.booleans())
    layers = []
    for number in range(draw(st.integers(1, 3))):
        heads = draw(st.sampled_from((1, 2)))
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            relative_buckets=stem.history + 1,
            pointwise=draw(st.booleans()),
        )
        ffn = FeedForward(
            width=draw(st.sampled_from((8, 20))),
            activation=draw(st.sampled_from(("relu", "gelu", "silu"))),
            gated=draw(st.booleans()),
            bias=bias,
        )
        kept = draw(st.sampled_from(("both", "both", "attention", "ffn"))) if number else "both"
        layers.append(Layer(attention=attention if kept != "ffn" else None, ffn=ffn if kept != "attention" else None))
    head: Literal["scores", "similarity"] = draw(st.sampled_from(("scores", "similarity")))
    return ArchSpec(
        vocab_size=0,
        d_model=draw(st.sampled_from((8, 16))),
        layers=tuple(layers),
        max_tokens=stem.history + 1,
        norm=draw(st.sampled_from(("rmsnorm", "layernorm"))),
        positions="none",
        head=head,
        stem=stem,
    )


def shaken(arch: ArchSpec, *, seed: int) -> Ranker:
    """A random model in which norms, biases and distances are not ones and zeros, so that forgetting one shows."""
    return shake(build(arch, seed=seed), seed=seed)


def random_requests(arch: ArchSpec, *, batch: int, seed: int = 0) -> torch.Tensor:
    """Random requests (batch, S + C, 1 + bag); items and tags include 0, the padding value."""
    stem = arch.stem
    assert isinstance(stem, RankingStem)
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(stem.items + 1, (batch, stem.tokens, 1), generator=generator)
    tags = torch.randint(stem.tags + 1, (batch, stem.tokens, stem.bag), generator=generator)
    return torch.cat((items, tags), dim=2)


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes that its spec says."""
    check_weights(Ranker, arch)


def check_flops(arch: ArchSpec, *, batch: int = 2) -> None:
    """Asserts that lowering counts the products that torch runs, less those of the history after the last attention.

    Torch carries all positions to the end. So an attention is put after the layers: of its products the history's
    scores, values and output are all that lowering leaves out.
    """
    stem, last = arch.stem, next(layer.attention for layer in reversed(arch.layers) if layer.attention is not None)
    assert isinstance(stem, RankingStem)
    longer = replace(arch, layers=(*arch.layers, Layer(attention=last, ffn=None)))
    left_out = batch * stem.history * last.query_width * (4 * stem.history + 2 * arch.d_model)
    model = shaken(longer, seed=0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(random_requests(arch, batch=batch))
    assert (
        counter.get_total_flops()
        == product_flops(lower(Design(arch=longer), Workload(batch=batch), Phase.PREFILL)) + left_out
    )


def product_flops(graph: OpGraph) -> int:
    """FLOPs of the matrix products in ``graph``: projections, and scores and values over the history; no biases."""
    total = 0
    for placed in graph:
        if isinstance(op := placed.op, Matmul):
            total += 2 * op.m * op.k * op.n
        elif isinstance(op, RequestAttentionOp):
            total += 4 * op.batch * op.heads * op.head_size * op.queries * op.history
    return total


def check_alone(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that candidates are scored as they would be one by one."""
    model, requests = shaken(arch, seed=0), random_requests(arch, batch=2)
    history = model.history
    with torch.no_grad():
        together = model(requests)
        for number in range(together.shape[1]):
            one = torch.cat((requests[:, :history], requests[:, history + number, None]), dim=1)
            torch.testing.assert_close(model(one)[:, 0], together[:, number], atol=tolerance, rtol=tolerance)


def check_export(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the exported graph gives the module's scores, for one request and three, of 1, 4 or 9 candidates.

    Also that it has a node for each product, gathered table and norm that lowering lists, and an int8 graph near it.
    """
    import onnx

    from chipwise.deploy.export.onnx import export
    from chipwise.deploy.runtimes.onnxruntime import OnnxRanker

    model = shaken(arch, seed=0)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    requests = random_requests(with_candidates(arch, 9), batch=3)
    with torch.no_grad():
        expected = model(requests).numpy()
    with TemporaryDirectory() as folder:
        designs = [Design(arch=arch, weights="int8"), *(Design(arch=arch, fused=names) for names in FUSED)]
        for design in designs:
            path = export(design, weights, Path(folder) / "model.onnx")
            for batch, count in ((1, 9), (3, 4), (3, 1)):
                given_ids = requests[:batch, : model.history + count].numpy()
                found = OnnxRanker(path, batch=batch, candidates=count).prefill(given_ids)
                plain = design.weights == "fp32"
                near = tolerance if plain else INT8_TOLERANCE * max(1.0, float(np.abs(expected).max()))
                np.testing.assert_allclose(found, expected[:batch, :count], atol=near, rtol=tolerance)
            if plain:
                _check_nodes(
                    [node.op_type for node in onnx.load(path).graph.node],
                    lower(design, Workload(batch=1), Phase.PREFILL),
                )


def _check_nodes(nodes: list[str], graph: OpGraph) -> None:
    listed = {kind: sum(isinstance(placed.op, kind) for placed in graph) for kind in (Matmul, RequestAttentionOp)}
    assert nodes.count("FusedMatMul") == listed[RequestAttentionOp]
    assert nodes.count("MatMul") == listed[Matmul] + listed[RequestAttentionOp]
    assert nodes.count("Gather") == sum(isinstance(placed.op, EmbeddingOp | EmbeddingBagOp) for placed in graph)
    assert sum("LayerNormalization" in node for node in nodes) == sum(isinstance(p.op, NormOp) for p in graph)


def check_slice(arch: ArchSpec) -> None:
    """Asserts that the weights cut from a larger model are a model of ``arch``, with the larger's values."""
    whole = wider(arch)
    weights = dict(shaken(whole, seed=0).state_dict())
    found = {name: cut.of(weights) for name, cut in cuts(arch, whole).items()}
    assert {name: tuple(value.shape) for name, value in found.items()} == weight_shapes(arch)
    alone = Ranker(arch)
    alone.load_state_dict(found)
    assert all(torch.equal(cut.of(weights), weights[name]) for name, cut in cuts(whole, whole).items())
    with torch.no_grad():
        assert torch.isfinite(alone.eval()(random_requests(arch, batch=2))).all()
    assert arch.parameters() < whole.parameters()


def wider(arch: ArchSpec) -> ArchSpec:
    """A model of the same requests that is larger in everything else that has a size."""
    stem = arch.stem
    assert isinstance(stem, RankingStem)
    wide = replace(stem, width=stem.width + 2 if stem.width else 0)
    return replace(arch, d_model=arch.d_model + 8, stem=wide, layers=wider_layers(arch))
