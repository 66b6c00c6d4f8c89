"""Rules that propose different blocks and layers of about the same quality."""

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
    """Proposes half as many layers, each √2 times as wide, for models whose layers are all equal.

    With the same number of parameters, fewer and wider layers need fewer and larger kernels.
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
        quality="usually a little worse: at equal size deeper models are better; measure with a short training run",
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
    """Proposes plain feed-forwards instead of gated ones, if activation kernels take 3 % of the kernel time or more.

    A gated feed-forward has three matrices and an activation with two inputs; a plain one has two matrices and an
    activation with one input. The number of parameters stays about the same.
    """
    blocks = feed_forwards(case.arch)
    if not blocks or not blocks[0].gated or _share(case) < 0.03:
        return
    width = up_to(blocks[0].width * 3 // 2, 64)
    changed = each_ffn(case.arch, lambda block: replace(block, width=width, gated=False, activation="relu"))
    yield Proposal(
        title=f"gated FFN of {blocks[0].width} -> plain FFN of {width} with ReLU",
        touches="architecture",
        how=f"two matrices of width {width} and a ReLU between them; train from scratch",
        changed=case.question.but(arch=changed),
        headline=case.slower,
        quality="a little worse: gated feed-forwards are better at equal size",
        source="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    )


def _share(case: Case) -> float:
    """Share of the kernel time that goes to activation functions, in the phase that takes most of a request's time."""
    phase: PhaseName = "decode" if case.slower == "tpot_p50" else "prefill"
    return case.share(phase, place="ffn.act")


def parallel_blocks(case: Case) -> Iterator[Proposal]:
    """Proposes that attention and feed-forward of each layer read the same input, for pre-norm models.

    Such parallel blocks need one norm and one all-reduce per layer instead of two.
    """
    arch = case.arch
    if arch.norm_place != "pre" or arch.encoder or case.sheet is None:
        return
    layers = tuple(_parallel(layer) for layer in arch.layers)
    if layers == arch.layers:
        return
    yield Proposal(
        title="attention and feed-forward of each layer in parallel",
        touches="architecture",
        how="x + attention(norm(x)) + ffn(norm(x)) in each layer (GPT-J, PaLM, Falcon); train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline=case.slower,
        quality="a little worse at 8 B parameters; no loss was found at 62 B",
        source="Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 2",
    )


def _parallel(layer: Layer) -> Layer:
    if layer.parallel or layer.attention is None or not isinstance(layer.ffn, FeedForward) or layer.cross is not None:
        return layer
    return replace(layer, parallel=True, ffn_norm=False)


def weight_sharing(case: Case) -> Iterator[Proposal]:
    """Proposes that every second layer reuses the weights of the layer before it, in small models with equal layers.

    Sharing halves the memory for weights. The time stays the same unless a cache can hold the shared layer.
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
        title="every second layer shares the weights of the layer before it",
        touches="architecture",
        how="share weights between layers 0 and 1, 2 and 3, …; train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline="peak_memory",
        quality="a little worse than separate layers, better than half as many layers",
        source="Liu et al. 2024, MobileLLM, arXiv:2402.14905, section 3.4; Lan et al. 2019, ALBERT, arXiv:1909.11942",
    )


def grouped_experts(case: Case) -> Iterator[Proposal]:
    """Proposes one grouped matrix product for all experts, in runtimes that loop over the experts of a mixture.

    In such a loop the experts run one after another, each with small matrix products.
    """
    runtime = case.question.served_by
    if case.sheet is None or runtime.fuses("experts") or not mixture(case.arch):
        return
    yield Proposal(
        title="one grouped product for all experts instead of a loop",
        touches="runtime",
        how=f"a grouped kernel in {runtime.title} (torch._grouped_mm, MegaBlocks), or a runtime with one, such as vLLM",
        changed=case.question.but(runtime=replace(runtime, fused=runtime.fused | {"experts"})),
        headline=case.slower,
        quality="no loss; the gain is larger than stated, because the loop's host time is not counted",
        source="Gale et al. 2022, MegaBlocks, arXiv:2211.15841; transformers 4, modeling_mixtral.py loops over experts",
    )
