"""The mix of GGUF formats with the least predicted divergence within limits of size and time, chosen exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chipwise.deploy.runtimes.ggml import TYPES, Product
from chipwise.design.quantize.losses import Losses
from chipwise.design.strategies.exact import Option, choose

Shape = tuple[int, int]  # rows and width of a matrix
Prices = dict[tuple[str, Shape], float]  # seconds of one product by format and shape
_ENDS = ("token_embd.weight", "output.weight")
_SET_BYTES, _MOST_COPIES = 8 << 20, 64  # copies of a matrix: more than a core's own cache holds


def price_rounds(keys: Sequence[tuple[str, Shape]], *, rounds: int, tokens: int) -> Iterator[list[float]]:
    """Processor seconds of a product with each format and shape in llama.cpp's kernels, in each of ``rounds``.

    All formats and shapes take turns, so that weights are read from memory and the machine's drift hits all alike.
    Of more than one token, one product reads its weights once for all.
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
    """The format of each matrix with the least sum of losses.

    Args:
        shapes: Rows and width of each matrix.
        losses: Nats per token by matrix and format.
        prices: Seconds by format and shape; the token table has no product, and costs none.
        limits: Largest ``size`` in bytes, and ``time`` of a step and ``prefill`` of a prompt in seconds of all
            products; each may be absent.
        prompt_prices: Seconds of a prompt by format and shape, where ``prefill`` is limited; the head has none, since
            it reads one token alone.

    Raises:
        Infeasible: No mix keeps the limits.
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
