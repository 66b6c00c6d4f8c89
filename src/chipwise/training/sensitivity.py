"""Loss that each layer alone costs in a narrow weight format, which ``chipwise explain --sensitivity`` reads.

Layers are rounded one at a time, so losses that only appear together are not found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.errors import InputError
from chipwise.core.files import read_text
from chipwise.training.origin import read_origin, require_weights

if TYPE_CHECKING:
    from chipwise.deploy.torch import Transformer
    from chipwise.training.tokenizer import TokenData


def layer_losses(
    model: Transformer,
    form: str,
    data: TokenData,
    *,
    max_bytes: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Increase in bits per byte of the validation text with the matrices of one layer in ``form``, for each layer.

    Raises:
        Unsupported: Weights cannot be rounded to ``form``.
    """
    from chipwise.training.evaluate import evaluate, rounded

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
        on_progress(layer + 1, layers)
    model.load_state_dict(kept)
    return tuple(losses)


def folder_losses(
    folder: str | Path,
    text: str | Path,
    form: str,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """:func:`layer_losses` of the model in ``folder`` on a text file, each line an entry.

    Raises:
        InputError: The folder has no weights and tokenizer, or the file no text.
        Unsupported: Weights cannot be rounded to ``form``.
    """
    place = require_weights(folder, purpose="sensitivity")
    held = [line for line in read_text(text).splitlines() if line.strip()]
    if not held:
        raise InputError(f"{text}: there is no text to evaluate on")
    origin = read_origin(place)

    from chipwise.training.evaluate import load_model
    from chipwise.training.tokenizer import TokenData, encode, entry_bytes, load_tokenizer

    assert origin.weights is not None
    assert origin.tokenizer is not None
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
    return layer_losses(load_model(origin.arch, origin.weights), form, data, on_progress=on_progress)
