"""Other blocks and layers of about the same quality."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case, PhaseName
from chipwise.predict.explain.rules.change import each_ffn, feed_forwards, mixture, up_to

SHALLOW = 4  # number of layers below which quality falls fast
SMALL = 2e9  # parameters; below this, size decides whether a model ships


def depth(case: Case) -> Iterator[Proposal]:
    """Proposes half the layers at √2 the width, for models whose layers are all equal.

    At equal parameters, fewer and wider layers have fewer and larger kernels.
    """
    wider = half_as_deep(case.arch)
    if wider is None:
        return
    yield Proposal(
        title=f"{len(case.arch.layers)} layers of {case.arch.d_model} -> {len(wider.layers)} of {wider.d_model}",
        touches="architecture",
        how=f"hidden_size {wider.d_model}, {len(wider.layers)} layers, FFN and heads in proportion; train from scratch",
        changed=case.question.but(arch=wider),
        headline=case.slower,
        quality="usually a little worse: at equal size deeper models are better; measure with a short training",
        source="Levine et al. 2020, arXiv:2006.12467; Liu et al. 2024, MobileLLM, arXiv:2402.14905",
    )


def half_as_deep(arch: ArchSpec) -> ArchSpec | None:
    """Returns ``arch`` with half the layers and about as many parameters; None if layers differ or are few."""
    first = arch.layers[0]
    if len(arch.layers) < 2 * SHALLOW or any(layer != first for layer in arch.layers) or arch.encoder:
        return None
    if not isinstance(first.attention, Attention) or not isinstance(first.ffn, FeedForward):
        return None
    size = first.attention.head_size
    heads = round(first.attention.heads * 2**0.5)
    heads -= heads % max(1, first.attention.kv_heads) if first.attention.kv_heads < first.attention.heads else 0
    if heads < 1:
        return None
    kv_heads = first.attention.kv_heads if first.attention.kv_heads < first.attention.heads else heads
    width = round(first.ffn.width * 2**0.5 / 128) * 128 or 128
    layer = Layer(
        attention=replace(first.attention, heads=heads, kv_heads=kv_heads), ffn=replace(first.ffn, width=width)
    )
    d_model = round(arch.d_model * 2**0.5 / size) * size
    return replace(arch.of_width(d_model), layers=(layer,) * (len(arch.layers) // 2))


def plain_ffn(case: Case) -> Iterator[Proposal]:
    """Proposes a plain feed-forward with equal parameters, where activations are separate kernels that take time.

    Gated feed-forwards have three matrices and an activation with two inputs; plain ones have two.
    """
    blocks = feed_forwards(case.arch)
    if not blocks or not blocks[0].gated or _share(case) < 0.03:
        return
    width = up_to(blocks[0].width * 3 // 2, 64)
    changed = each_ffn(case.arch, lambda block: replace(block, width=width, gated=False, activation="relu"))
    yield Proposal(
        title=f"gated FFN of {blocks[0].width} -> plain FFN of {width} with ReLU",
        touches="architecture",
        how=f"two matrices of width {width} and a ReLU between; train from scratch",
        changed=case.question.but(arch=changed),
        headline=case.slower,
        quality="gated units are a little better at equal size",
        source="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    )


def _share(case: Case) -> float:
    """Share of activations in the longer phase of a request."""
    phase: PhaseName = "decode" if case.slower == "tpot_p50" else "prefill"
    return case.share(phase, place="ffn.act")


def parallel_blocks(case: Case) -> Iterator[Proposal]:
    """Proposes, for pre-norm models, that both blocks of a layer read the same input.

    Parallel attention and feed-forward: one norm and one all-reduce per layer instead of two.
    """
    arch = case.arch
    if arch.norm_place != "pre" or arch.encoder or case.sheet is None:
        return
    layers = tuple(_parallel(layer) for layer in arch.layers)
    if layers == arch.layers:
        return
    yield Proposal(
        title="attention and feed-forward of a layer side by side",
        touches="architecture",
        how="x + attention(norm(x)) + ffn(norm(x)) in each layer (GPT-J, PaLM, Falcon); train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline=case.slower,
        quality="a little worse at 8 B parameters, none found at 62 B",
        source="Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 2",
    )


def _parallel(layer: Layer) -> Layer:
    if layer.parallel or layer.attention is None or not isinstance(layer.ffn, FeedForward) or layer.cross is not None:
        return layer
    return replace(layer, parallel=True, ffn_norm=False)


def weight_sharing(case: Case) -> Iterator[Proposal]:
    """Proposes that every second layer uses the previous layer's weights, in small models with equal layers.

    Neighbouring layers that share weights: half the memory, the same time unless caches hold the layer.
    """
    arch = case.arch
    if arch.parameters() > SMALL or any(layer.shares is not None for layer in arch.layers):
        return
    layers = tuple(
        replace(layer, shares=i - 1) if i % 2 and tuple(layer.blocks()) == tuple(arch.layers[i - 1].blocks()) else layer
        for i, layer in enumerate(arch.layers)
    )
    if layers == arch.layers:
        return
    yield Proposal(
        title="every second layer shares the weights of the one before",
        touches="architecture",
        how="share weights between layers 0 and 1, 2 and 3, …; train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline="peak_memory",
        quality="a little worse than separate layers, better than half the layers",
        source="Liu et al. 2024, MobileLLM, arXiv:2402.14905, section 3.4; Lan et al. 2019, ALBERT, arXiv:1909.11942",
    )


def grouped_experts(case: Case) -> Iterator[Proposal]:
    """Proposes a grouped product for mixtures, in runtimes that loop over experts.

    Proposes grouped kernels for mixtures whose experts run one after another as many small products.
    """
    runtime = case.question.served_by
    if case.sheet is None or runtime.fuses("experts") or not mixture(case.arch):
        return
    yield Proposal(
        title="one grouped product for all experts instead of a loop",
        touches="runtime",
        how=f"a grouped kernel in {runtime.title} (torch._grouped_mm, MegaBlocks), or a runtime that has one, as vLLM",
        changed=case.question.but(runtime=replace(runtime, fused=runtime.fused | {"experts"})),
        headline=case.slower,
        quality="none; the gain is larger than stated, since host time for the loop is not counted",
        source="Gale et al. 2022, MegaBlocks, arXiv:2211.15841; transformers 4, modeling_mixtral.py loops over experts",
    )
