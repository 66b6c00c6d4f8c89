"""Rules on sizes that fit the tiles of matrix products and attention kernels, and on the token table and the head."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from chipwise.core import units
from chipwise.errors import ChipwiseError
from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import (
    attentions,
    columns_of_tile,
    each_attention,
    each_ffn,
    feed_forwards,
    up_to,
)

SOURCE = "Anthony et al. 2024, The Case for Co-Designing Model Architectures with Hardware, arXiv:2401.14489"
SIZES = (128, 64)  # head sizes supported by fused attention kernels
SMALL = 2e9  # parameters
LONGER = 0.06  # relative growth of the number of tokens in a text for each halving of the vocabulary
REACH = 0.06  # largest relative widening of a feed-forward


def aligned_width(case: Case) -> Iterator[Proposal]:
    """Proposes the next smaller and the next larger FFN width whose share on each device fills whole tiles.

    Otherwise, part of the last tile of each matrix product is wasted.
    """
    multiple = columns_of_tile(case.sheet, "bf16")
    blocks = feed_forwards(case.arch)
    if not blocks or len({block.width for block in blocks}) > 1:
        return
    width, step = blocks[0].width, multiple * case.question.deployment.tp
    if width % step:
        for aligned in (width // step * step, up_to(width, step)):
            if not aligned:
                continue
            difference = (aligned - width) / width
            changed = each_ffn(case.arch, functools.partial(replace, width=aligned))
            yield Proposal(
                title=f"FFN width {width} -> {aligned}, a multiple of {multiple}",
                touches="architecture",
                how=f"set intermediate_size to {aligned} and train from scratch",
                changed=case.question.but(arch=changed),
                headline=case.slower,
                quality=f"{'a little better' if difference > 0 else 'a little worse'}: "
                f"the FFN's width changes by {units.signed_percent(difference)}",
                source=SOURCE,
            )


def hidden_size(case: Case) -> Iterator[Proposal]:
    """Proposes the next smaller and the next larger hidden size that is a multiple of half the width of a tile.

    Half the width counts as at least 16 columns. The hidden size is the number of columns or the inner dimension of
    most matrix products. The number and the size of the heads stay the same.
    """
    multiple = max(16, columns_of_tile(case.sheet, "bf16") // 2)
    width = case.arch.d_model
    if width % multiple == 0:
        return
    for aligned in (width // multiple * multiple, (width // multiple + 1) * multiple):
        if not aligned:
            continue
        change = (aligned - width) / width
        yield Proposal(
            title=f"hidden size {width} -> {aligned}, a multiple of {multiple}",
            touches="architecture",
            how=f"set hidden_size to {aligned} (head_dim and heads as they are) and train from scratch",
            changed=case.question.but(arch=case.arch.of_width(aligned)),
            headline=case.slower,
            quality=f"a little {'better' if change > 0 else 'worse'}: the model's width changes by "
            f"{units.signed_percent(change)}",
            source=SOURCE,
        )


def head_size(case: Case) -> Iterator[Proposal]:
    """Proposes heads of size 128 or 64 with the same total width of queries, if the head size is not 64, 128 or 256.

    Attention kernels have no tiles for other head sizes.
    """
    blocks = attentions(case.arch)
    if not blocks or blocks[0].head_size in (64, 128, 256):
        return
    first = blocks[0]
    for size in SIZES:
        heads, kv_heads = first.query_width // size, max(1, first.kv_width // size)
        if first.query_width % size or heads % kv_heads or heads % case.question.deployment.tp:
            continue

        def change(block: Attention, heads: int = heads, kv_heads: int = kv_heads, size: int = size) -> Attention:
            return replace(block, heads=heads, kv_heads=kv_heads, head_size=size)

        yield Proposal(
            title=f"heads of {first.head_size} -> {heads} heads of {size}",
            touches="architecture",
            how=f"set num_attention_heads to {heads} (head size {size}) and train from scratch",
            changed=case.question.but(arch=each_attention(case.arch, change)),
            headline=case.slower,
            quality="no difference was found between heads of 64 and 128 at equal width",
            source=SOURCE,
        )


def vocabulary(case: Case) -> Iterator[Proposal]:
    """Proposes padding the vocabulary so that each device's share is a multiple of the tile's columns.

    Tiles with more than 128 columns count as 128 columns. Without padding, part of the head's last tile is wasted, and
    loads may not be aligned.
    """
    arch = case.arch
    multiple = min(128, columns_of_tile(case.sheet, "bf16"))
    padded = up_to(arch.vocab_size, multiple * case.question.deployment.tp)
    if padded == arch.vocab_size or not arch.head.writes:
        return
    shards = f" on each of {case.question.deployment.tp} devices" if case.question.deployment.tp > 1 else ""
    yield Proposal(
        title=f"vocabulary {arch.vocab_size} -> {padded}, a multiple of {multiple}{shards}",
        touches="architecture",
        how=f"set vocab_size to {padded}; the {padded - arch.vocab_size} new rows are never chosen",
        changed=case.question.but(arch=arch.of_vocabulary(padded)),
        headline="tpot_p50" if case.share("decode", place="head") > case.share("prefill", place="head") else "ttft_p50",
        quality="no loss: the new tokens' logits are masked",
        source="Karpathy 2023, nanoGPT; NVIDIA, Matrix Multiplication Background User's Guide, section 2.2",
    )


def small_vocabulary(case: Case) -> Iterator[Proposal]:
    """Proposes a vocabulary a quarter as large, for small models whose head takes 20 % of a decode step or more.

    In a small model with a large vocabulary, the head has a large share of the parameters and is read for every token.
    """
    arch = case.arch
    if not arch.head.writes or arch.parameters() > SMALL or case.share("decode", place="head") < 0.2:
        return
    size = up_to(arch.vocab_size // 4, columns_of_tile(case.sheet, "bf16"))
    if size < 4096:
        return
    longer = (1 + LONGER) ** math.log2(arch.vocab_size / size) - 1
    yield Proposal(
        title=f"vocabulary {arch.vocab_size} -> {size}",
        touches="architecture",
        how=f"train a tokenizer of {size} tokens, then retrain the model",
        changed=case.question.but(arch=arch.of_vocabulary(size)),
        quality=f"texts need about {units.show(longer, 'share', digits=2)} more tokens, so subtract that from the gain",
        source="Tao et al. 2024, Scaling Laws with Vocabulary, arXiv:2407.13623: small models want small vocabularies",
    )


def tied_embeddings(case: Case) -> Iterator[Proposal]:
    """Proposes one table for token embeddings and head, if these two tables have 20 % of the parameters or more.

    Only small models have such a large share of their parameters in these tables.
    """
    arch = case.arch
    if arch.tie_embeddings or not arch.head.writes:
        return
    share = 2 * arch.vocab_size * arch.d_model / arch.parameters()
    if share < 0.2:
        return
    yield Proposal(
        title=f"one table for input and output: {_percent(share)} of the parameters become {_percent(share / 2)}",
        touches="architecture",
        how="set tie_word_embeddings to true and train from scratch",
        changed=case.question.but(arch=arch.with_tied(True)),
        headline="peak_memory",
        quality="often better for models of this size",
        source="Press and Wolf 2016, arXiv:1608.05859; Liu et al. 2024, MobileLLM, arXiv:2402.14905",
    )


def _percent(share: float) -> str:
    return units.show(share, "share", digits=2)


def wave_quantisation(case: Case) -> Iterator[Proposal]:
    """Proposes a wider feed-forward on GPUs, if its tiles fill whole waves and it is therefore faster.

    The chip's units compute tiles in waves. A matrix product with slightly more tiles than n waves hold needs n + 1
    waves, the last of which is nearly empty (wave quantisation).
    """
    blocks = feed_forwards(case.arch)
    if not blocks or case.sheet is None or case.sheet.kind != "gpu":
        return
    step = columns_of_tile(case.sheet, "bf16") * case.question.deployment.tp
    width = max(block.width for block in blocks)
    widths = range(up_to(width + 1, step), int(width * (1 + REACH)) + 1, step)
    questions = [
        case.question.but(arch=each_ffn(case.arch, lambda block, new=new: replace(block, width=new)))  # type: ignore[misc]
        for new in widths
    ]
    answers = case.pricer.price(questions)
    timed = [
        (answer.ttft_s, new, question)
        for new, question, answer in zip(widths, questions, answers, strict=True)
        if not isinstance(answer, ChipwiseError)
    ]
    if not timed:
        return
    seconds, new, question = min(timed, key=lambda each: each[0])
    if seconds >= case.estimate.ttft_s:
        return
    yield Proposal(
        title=f"FFN width {width} -> {new}: wider, and its tiles fill whole waves",
        touches="architecture",
        how=f"set intermediate_size to {new} and train from scratch; the gain holds for prompts of this length",
        changed=question,
        headline="ttft_p50",
        quality="a little better: the model is larger",
        source="NVIDIA, Matrix Multiplication Background User's Guide, wave quantisation",
    )
