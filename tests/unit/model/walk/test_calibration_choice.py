"""The quantiser is chosen by what the rounded model loses; rounding to nearest is kept unless another one is better."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest

from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import UnknownName
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, quantize_int8
from chipwise.model.walk.calibration import choose, quantiser, restored

ARCH = uniform(vocab_size=40, d_model=32, depth=1, heads=2, ffn_width=32, max_tokens=8)
WEIGHTS = random_weights(ARCH, seed=0)


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 2.0, 1.0], "gptq"),
        ([2.0, 2.0, 2.0], "nearest"),
        ([1.0, 2.0, 3.0], "nearest"),
        ([3.0, math.nan, 4.0], "nearest"),
        ([3.0, 2.0, math.inf], "searched"),
    ],
)
def test_the_least_loss_wins_and_the_first_of_equal_ones(losses: list[float], best: str) -> None:
    told, seconds = iter(losses), count(step=0.5)
    found = choose(
        Design(arch=ARCH, weights="int4"),
        WEIGHTS,
        NEAREST,
        lambda arch, weights: next(told),
        clock=lambda: next(seconds),
    )
    assert found.method == best
    assert list(found.losses) == ["nearest", "searched", "gptq"]
    assert set(found.cpu_s.values()) == {0.5}


def test_matrices_are_restored_and_a_tied_head_becomes_a_table_of_its_own() -> None:
    arch, found = restored(Design(arch=ARCH, weights="fp32 head:int8"), WEIGHTS, NEAREST)
    assert not arch.tie_embeddings
    values, scales = quantize_int8(WEIGHTS["embedding.weight"])
    assert np.array_equal(found["head.weight"], values * scales[:, None])
    assert all(found[name] is value for name, value in WEIGHTS.items())


def test_an_unknown_quantiser_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'gptg'.*gptq"):
        quantiser("gptg")
