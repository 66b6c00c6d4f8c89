import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.formats import formats_word
from chipwise.model.walk.module import build
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.evaluate import load_model, quantised, rounded


def arrays(arch: ArchSpec, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in build(arch, seed=seed).state_dict().items()}


def test_a_model_that_guesses_needs_the_logarithm_of_its_vocabulary(arch: ArchSpec, data: TokenData) -> None:
    zero = {name: np.zeros_like(value) for name, value in arrays(arch).items()}
    quality = data.quality(load_model(arch, zero))
    tokens, size_bytes = len(data.validation) - 1, int(data.validation_bytes.sum())
    assert quality.bits_per_byte == pytest.approx(math.log2(300) * tokens / size_bytes, rel=1e-5)
    assert quality.perplexity == pytest.approx(300, rel=1e-4)
    assert (quality.tokens, quality.bytes) == (tokens, size_bytes)


def test_the_test_part_is_scored_apart_from_the_validation_part(arch: ArchSpec, data: TokenData) -> None:
    zero = load_model(arch, {name: np.zeros_like(value) for name, value in arrays(arch).items()})
    tokens, size_bytes = len(data.test) - 1, int(data.test_bytes.sum())
    quality = data.quality(zero, split="test")
    assert quality.bits_per_byte == pytest.approx(math.log2(300) * tokens / size_bytes, rel=1e-5)
    assert (quality.tokens, quality.bytes) == (tokens, size_bytes) != (len(data.validation) - 1, size_bytes)


def test_windows_count_every_token_once(arch: ArchSpec, data: TokenData) -> None:
    model = build(arch, seed=0).eval()
    stream = torch.from_numpy(data.held_out(max_bytes=1000)[0].astype(np.int64))
    with torch.no_grad():
        nats = sum(
            float(-torch.log_softmax(model(stream[None, start:end])[0][0], -1)[range(end - start), targets].sum())
            for start in range(0, len(stream) - 1, 128)
            if (end := min(start + 128, len(stream) - 1)) and (targets := stream[start + 1 : end + 1]) is not None
        )
    quality = data.quality(load_model(arch, arrays(arch)), max_bytes=1000)
    assert quality.bits_per_byte == pytest.approx(nats / math.log(2) / quality.bytes, rel=1e-5)


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=70), st.sampled_from(["int8", "int4"]))
def test_rounding_errs_by_half_a_step_of_the_largest_value(values: list[float], form: str) -> None:
    weight = torch.tensor([values])
    step = float(weight.abs().max()) / (64 if form == "int8" else 7)
    assert float((rounded(weight, form) - weight).abs().max()) <= step * (0.501 if form == "int8" else 1.001) + 1e-7


def test_only_projections_and_head_are_rounded(arch: ArchSpec) -> None:
    model = build(arch, seed=0)
    copy = quantised(model, "int4").state_dict()
    for name, value in model.state_dict().items():
        same = torch.equal(copy[name], value)
        assert same == (not name.startswith("layers.") or value.ndim == 1), name
    assert not torch.equal(copy["head.weight"], model.embedding.weight)


def test_each_layer_is_rounded_in_its_own_format(arch: ArchSpec) -> None:
    model = build(arch, seed=0)
    word = formats_word(["int4", *["fp32"] * (len(arch.layers) - 1)], "int8")
    copy = quantised(model, word).state_dict()
    for name, value in model.state_dict().items():
        if name.startswith("layers.0.") and value.ndim == 2:
            assert torch.equal(copy[name], rounded(value, "int4"))
        else:
            assert torch.equal(copy[name], value), name
    assert torch.equal(copy["head.weight"], rounded(model.embedding.weight, "int8"))


def test_fewer_bits_cost_quality_in_order(arch: ArchSpec, data: TokenData) -> None:
    weights = arrays(arch)
    exact = data.quality(load_model(arch, weights), max_bytes=2000).bits_per_byte
    shift = {
        form: abs(data.quality(quantised(load_model(arch, weights), form), max_bytes=2000).bits_per_byte - exact)
        for form in ("fp32", "int8", "int4")
    }
    assert shift["fp32"] < 1e-6
    assert shift["int8"] < shift["int4"] < 0.1


def test_what_cannot_be_judged_is_refused(arch: ArchSpec, data: TokenData, tmp_path: Path) -> None:
    wider = arch.of_vocabulary(301)
    with pytest.raises(InputError, match="301 tokens"):
        data.quality(load_model(wider, arrays(wider)))
    with pytest.raises(InputError, match="cannot be read as weights"):
        load_model(arch, tmp_path / "none.safetensors")
    with pytest.raises(Unsupported, match="fp16"):
        data.quality(quantised(load_model(arch, arrays(arch)), "fp16"))
