"""What one layer at a time loses in a narrow format."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chipwise import api
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.module import build
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import rounded
from chipwise.training.loop.sensitivity import layer_losses


def judged_on(data: TokenData) -> Callable[[Transformer], float]:
    return lambda model: data.quality(model, max_bytes=2000).bits_per_byte


def test_a_layer_that_a_format_holds_exactly_loses_nothing(arch: ArchSpec, data: TokenData) -> None:
    """Values that were rounded to int8 once are rounded to themselves."""
    model = build(arch, seed=0).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.startswith("layers.0.") and value.ndim == 2:
                value.copy_(rounded(value, "int8"))
    losses = layer_losses(model, "int8", judged_on(data))
    assert len(losses) == len(arch.layers)
    assert losses[0] == pytest.approx(0, abs=1e-6)
    assert all(abs(loss) > 1e-9 for loss in losses[1:])


def test_fewer_bits_move_a_layer_further_and_the_model_is_left_as_it_was(arch: ArchSpec, data: TokenData) -> None:
    model = build(arch, seed=1).eval()
    before = data.quality(model, max_bytes=2000).bits_per_byte
    eight, four = (layer_losses(model, form, judged_on(data)) for form in ("int8", "int4"))
    assert sum(map(abs, four)) > sum(map(abs, eight))
    assert data.quality(model, max_bytes=2000).bits_per_byte == before


def test_a_config_alone_has_nothing_to_lose(tmp_path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one line\n")
    with pytest.raises(InputError, match="weights and tokenizer"):
        api.sensitivity("gpt2", file)


def test_the_text_is_looked_for_before_the_weights_are_read(tmp_path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("neither is read")
    with pytest.raises(InputError, match=r"nowhere\.txt: there is no such file"):
        api.sensitivity(tmp_path, tmp_path / "nowhere.txt")
