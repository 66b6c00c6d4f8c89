"""Distance of cuts from the original on texts, without training: blocks one by one, or whole cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chipwise.nn.precision import Precision
from chipwise.shrinking.forward import Weights, autocast, distance, head_of, states
from chipwise.shrinking.importance import Statistics, repaired
from chipwise.shrinking.sizes import Sizes, blocks, cut_arch, cut_weights, whole_sizes
from chipwise.shrinking.texts import Targets
from chipwise.spec import ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A block at another size, with all else as it was, and how far that takes the model from the original."""

    layer: int
    kind: str
    size: int
    loss: float


def cut_loss(
    arch: ArchSpec,
    weights: Weights,
    sizes: Sizes,
    targets: Targets,
    *,
    original_head: Tensor,
    batches: int,
    precision: Precision = "fp32",
) -> float:
    """Mean distance of a cut of ``weights`` from the original over some batches, evenly taken by length."""
    work = targets.texts.batches()
    chosen = work[:: max(1, len(work) // batches)][:batches]
    sub, part = cut_arch(arch, sizes), cut_weights(arch, sizes, weights)
    total = count = 0.0
    with torch.no_grad():
        for numbers in chosen:
            tokens, mask = targets.texts.padded(numbers)
            with autocast(precision):
                found = states(sub, part, tokens, mask)
            target = targets.of(numbers, tokens.shape[1])
            total += len(numbers) * float(distance(sub, found, target, mask, (head_of(sub, part), original_head)))
            count += len(numbers)
    return total / count


def replacement_losses(
    arch: ArchSpec,
    weights: Weights,
    found: Statistics,
    options: Mapping[str, Sequence[int]],
    targets: Targets,
    *,
    original_head: Tensor,
    batches: int = 2,
    precision: Precision = "fp32",
    known: Sequence[Replacement] = (),
    keep: Callable[[list[Replacement]], None] = lambda done: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Replacement]:
    """Every size of every block in ``options``, with that block alone cut and repaired.

    Args:
        arch: The original, its weights ordered by importance.
        weights: Its weights.
        found: Statistics of the calibration text.
        options: Sizes by kind of block; 0 leaves it out. The whole size loses nothing by definition.
        targets: The original's states.
        original_head: Of a decoder, the original's head.
        batches: How many batches are used.
        precision: Of matrix products.
        known: Replacements whose loss is known.
        keep: Called with all so far, after each block.
        on_progress: Called with the blocks done and the total.
    """
    whole = whole_sizes(arch)
    have = {(item.layer, item.kind, item.size): item for item in known}
    wanted = [(i, kind, s) for i, kind in blocks(arch) for s in options[kind] if s < whole.block(i, kind)]
    done: list[Replacement] = []
    for number, (i, kind, size) in enumerate(wanted):
        item = have.get((i, kind, size))
        if item is None:
            sizes = whole.with_block(i, kind, size)
            mended = repaired(arch, weights, found, sizes)
            loss = cut_loss(
                arch, mended, sizes, targets, original_head=original_head, batches=batches, precision=precision
            )
            item = Replacement(layer=i, kind=kind, size=size, loss=loss)
        done.append(item)
        if number + 1 == len(wanted) or wanted[number + 1][:2] != (i, kind):
            keep(done)
        on_progress(number + 1, len(wanted))
    return done
