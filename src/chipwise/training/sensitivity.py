"""Which layers bear narrow weights: the text's cost with one layer at a time rounded, over its cost with none.

What ``chipwise explain --sensitivity`` reads. Layers are rounded one by one, so that losses which only appear together
are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from chipwise.core.errors import InputError
from chipwise.deploy.torch import Transformer
from chipwise.training.command import read_origin
from chipwise.training.evaluate import evaluate, load_model, rounded
from chipwise.training.tokenizer import TokenData, encode, entry_bytes, load_tokenizer


def layer_losses(
    model: Transformer,
    form: str,
    data: TokenData,
    *,
    max_bytes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Bits per byte that the validation text costs more with the matrices of one layer in ``form``, for each layer.

    Raises:
        Unsupported: Weights cannot be rounded to ``form``.
    """
    before = evaluate(model, data, max_bytes=max_bytes).bits_per_byte
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    layers = len(model.arch.layers)
    losses = []
    for layer in range(layers):
        inside = f"layers.{layer}."
        changed = {
            name: rounded(value, form) if name.startswith(inside) and value.ndim == 2 else value
            for name, value in kept.items()
        }
        model.load_state_dict(changed)
        losses.append(evaluate(model, data, max_bytes=max_bytes).bits_per_byte - before)
        progress(layer + 1, layers)
    model.load_state_dict(kept)
    return tuple(losses)


def folder_losses(
    folder: str | Path,
    texts: Sequence[str],
    form: str,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """:func:`layer_losses` of the model in ``folder`` on ``texts``.

    Raises:
        InputError: The folder has no weights and tokenizer, or there is no text.
        Unsupported: Weights cannot be rounded to ``form``.
    """

    origin = read_origin(folder)
    if origin.weights is None or origin.tokenizer is None:
        raise InputError(f"{folder}: sensitivity needs a folder with weights and tokenizer, such as a winner's")
    held = [text for text in texts if text.strip()]
    if not held:
        raise InputError("there is no text to judge by")
    stream, sizes = encode(load_tokenizer(origin.tokenizer), held), entry_bytes(held)
    data = TokenData(
        vocab_size=origin.arch.vocab_size,
        train=stream,
        bytes_train=int(sizes.sum()),
        validation=stream,
        validation_bytes=sizes,
        test=stream,
        test_bytes=sizes,
    )
    return layer_losses(load_model(origin.arch, origin.weights), form, data, progress=progress)
