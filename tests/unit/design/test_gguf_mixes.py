"""The exact choice of GGUF formats, against pencil arithmetic."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from chipwise.design.quantize.mixes import choose_mix
from chipwise.errors import Infeasible

SHAPES = {"a": (2, 256), "b": (2, 256)}
PRICES = {("Q8_0", (2, 256)): 2.0, ("Q4_K", (2, 256)): 1.0}
LOSSES = {"a": {"Q8_0": 0.0, "Q4_K": 0.5}, "b": {"Q8_0": 0.0, "Q4_K": 0.1}}


def test_the_less_sensitive_matrix_gets_the_fast_format() -> None:
    assert choose_mix(SHAPES, LOSSES, PRICES, limits={"time": 3.0}) == {"a": "Q8_0", "b": "Q4_K"}
    # 512 values: Q8_0 544 bytes, Q4_K 288 bytes
    assert choose_mix(SHAPES, LOSSES, PRICES, limits={"size": 544 + 288}) == {"a": "Q8_0", "b": "Q4_K"}
    assert choose_mix(SHAPES, LOSSES, PRICES, limits={"size": 575.9 + 0.1}) == {"a": "Q4_K", "b": "Q4_K"}


def test_limits_that_no_mix_keeps_are_refused() -> None:
    with pytest.raises(Infeasible, match="time"):
        choose_mix(SHAPES, LOSSES, PRICES, limits={"time": 1.9})


def test_prefill_is_a_limit_of_the_matrices_inside_layers() -> None:
    """Q8_0 takes 3 s of a prompt for ``a`` and ``b`` alike, Q4_K 5 s; the head reads one token and costs none."""
    shapes = {**SHAPES, "output.weight": (2, 256)}
    losses = {"a": {"Q8_0": 0.5, "Q4_K": 0.0}, "b": {"Q8_0": 0.1, "Q4_K": 0.0}, "output.weight": {"Q4_K": 0.0}}
    prompts = {("Q8_0", (2, 256)): 3.0, ("Q4_K", (2, 256)): 5.0}
    made = choose_mix(shapes, losses, PRICES, limits={"prefill": 8.0}, prompt_prices=prompts)
    assert made == {"a": "Q4_K", "b": "Q8_0", "output.weight": "Q4_K"}
    with pytest.raises(Infeasible, match="prefill"):
        choose_mix(shapes, losses, PRICES, limits={"prefill": 5.9}, prompt_prices=prompts)
