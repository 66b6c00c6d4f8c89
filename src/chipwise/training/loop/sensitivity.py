"""Loss increase if a single layer is stored in a narrow weight format; implements ``chipwise explain --sensitivity``.

Layers are rounded one at a time, so interactions between layers are not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chipwise.core.files import read_text
from chipwise.errors import InputError
from chipwise.training.data.tokenizer import encode, entry_bytes, load_tokenizer
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import load_model, rounded
from chipwise.training.loop.origin import read_origin, require_weights


def layer_losses(
    model: Any,
    weight_format: str,
    judge: Callable[[Any], float],
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """For each layer, the increase of the loss ``judge(model)`` if only its matrices are in ``weight_format``.

    Raises:
        Unsupported: Weights cannot be rounded to ``weight_format``.
    """
    before = judge(model)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    layers = len(model.arch.layers)
    losses = []
    for layer in range(layers):
        inside = f"layers.{layer}."
        changed = {
            name: rounded(value, weight_format) if name.startswith(inside) and value.ndim == 2 else value
            for name, value in kept.items()
        }
        model.load_state_dict(changed)
        losses.append(judge(model) - before)
        on_progress(layer + 1, layers)
    model.load_state_dict(kept)
    return tuple(losses)


def folder_losses(
    folder: str | Path,
    text: str | Path,
    weight_format: str,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Runs :func:`layer_losses` for the model in ``folder`` on a text file with one entry per line.

    Raises:
        InputError: The folder lacks weights or tokenizer, or the file contains no text.
        Unsupported: Weights cannot be rounded to ``weight_format``.
    """
    place = require_weights(folder, purpose="sensitivity")
    held = [line for line in read_text(text).splitlines() if line.strip()]
    if not held:
        raise InputError(f"{text}: the file contains no text on which to evaluate")
    origin = read_origin(place)

    weights, path = origin.trained()
    stream, sizes = encode(load_tokenizer(path), held), entry_bytes(held)
    data = TokenData(
        vocab_size=origin.arch.vocab_size,
        train=stream,
        bytes_train=int(sizes.sum()),
        validation=stream,
        validation_bytes=sizes,
        test=stream,
        test_bytes=sizes,
    )

    def bits_per_byte(model: Any) -> float:
        return data.quality(model).bits_per_byte

    return layer_losses(load_model(origin.arch, weights), weight_format, bits_per_byte, on_progress=on_progress)
