"""Models on a device: listed ones fit and are priced as by ``estimate``; the others do not fit."""

from __future__ import annotations

import pytest

import chipwise
from chipwise.errors import ChipwiseError, UnknownName


def test_those_that_fit_are_listed_largest_first() -> None:
    listed = chipwise.models_on("rtx-4070", "qwen3")
    sizes = [each.parameters for each in listed]
    assert sizes == sorted(sizes, reverse=True)
    names = {each.name for each in listed}
    assert "Qwen/Qwen3-8B" in names  # 8.2 billion weights of about 4.9 bits: 5 GB of 12
    assert "Qwen/Qwen3-32B" not in names  # 20 GB
    assert all(each.peak_memory_bytes < 12.9e9 for each in listed)
    assert all(each.low_tokens_per_s < each.decode_tokens_per_s < each.high_tokens_per_s for each in listed)
    assert {(each.runtime, each.weights) for each in listed} == {("llama.cpp", "q4_k_m")}


@pytest.mark.parametrize("device", ["rtx-4070", "h100-sxm", "raspberry-pi-5"])
def test_each_is_priced_as_an_estimate(device: str) -> None:
    (found,) = chipwise.models_on(device, "Qwen/Qwen3-1.7B", prompt_tokens=256, new_tokens=64)
    alone = chipwise.estimate("Qwen/Qwen3-1.7B", device=device, prompt=256, new=64)
    assert found.decode_tokens_per_s == pytest.approx(1 / alone.metrics["tpot_p50"].value, rel=1e-12)
    assert found.ttft_s == pytest.approx(alone.metrics["ttft_p50"].value, rel=1e-12)
    with pytest.raises(ChipwiseError, match="too much"):
        chipwise.estimate("Qwen/Qwen3-235B-A22B", device=device)
    assert not len(chipwise.models_on(device, "Qwen3-235B-A22B"))


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="rtx-4070"):
        chipwise.models_on("rtx-40700")
