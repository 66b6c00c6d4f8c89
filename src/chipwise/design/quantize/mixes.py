"""Chooses exactly the mix of GGUF formats with the least predicted divergence within limits on size and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chipwise.deploy.runtimes.ggml import TYPES, Product
from chipwise.design.quantize.losses import Losses
from chipwise.design.strategies.exact import Option, choose

Shape = tuple[int, int]  # rows and width of a matrix
Prices = dict[tuple[str, Shape], float]  # seconds of one matrix product by format and shape
_ENDS = ("token_embd.weight", "output.weight")
_SET_BYTES, _MOST_COPIES = 8 << 20, 64  # copies of a matrix take these bytes, more than a core's cache; most copies


def price_rounds(keys: Sequence[tuple[str, Shape]], *, rounds: int, tokens: int) -> Iterator[list[float]]:
    """Times a matrix product with each format and shape in llama.cpp's kernels; yields each round's seconds.

    Each round times all formats and shapes once, in processor seconds. Weights are therefore read from memory, not
    from caches, and slow changes of the machine's speed affect all formats alike. If ``tokens`` is above 1, a product
    reads its weights once for all tokens.
    """
    made = [
        Product(
            TYPES[kind],
            *shape,
            tokens=tokens,
            copies=1 if tokens > 1 else min(_MOST_COPIES, 1 + _SET_BYTES // TYPES[kind].matrix_bytes(*shape)),
        )
        for kind, shape in keys
    ]
    try:
        for _ in range(rounds):
            yield [product.seconds() for product in made]
    finally:
        for product in made:
            product.close()


def choose_mix(
    shapes: Mapping[str, Shape],
    losses: Losses,
    prices: Prices,
    *,
    limits: Mapping[str, float],
    prompt_prices: Prices | None = None,
) -> dict[str, str]:
    """Chooses the mix of formats with the least sum of losses within the limits.

    Args:
        shapes: Rows and width of each matrix.
        losses: Loss of each format in each matrix, in nats per token.
        prices: Seconds of a matrix product in each format and shape. The token table costs no time: it is not
            multiplied.
        limits: Upper limits: ``size`` in bytes, and seconds of all matrix products in a decode step (``time``) and in a
            prefill (``prefill``). Any of them may be missing.
        prompt_prices: Seconds of a matrix product in a prefill, in each format and shape; needed only if ``prefill`` is
            limited. The head is not included, because it processes only one token.

    Raises:
        Infeasible: No mix meets the limits.
    """
    names = list(shapes)
    kinds = [list(losses[name]) for name in names]
    untimed = {"token_embd.weight"} if "output.weight" in shapes else set()
    prompts = prompt_prices or {}
    parts = [
        [
            Option(
                loss=losses[name][kind],
                costs={
                    "size": TYPES[kind].matrix_bytes(*shapes[name]),
                    "time": 0.0 if name in untimed else prices[kind, shapes[name]],
                    "prefill": prompts.get((kind, shapes[name]), 0.0) if name not in _ENDS else 0.0,
                },
            )
            for kind in offered
        ]
        for name, offered in zip(names, kinds, strict=True)
    ]
    return {name: offered[i] for name, offered, i in zip(names, kinds, choose(parts, limits), strict=True)}
