"""What is tried where memory is too small: messages and advice name the same changes."""

from __future__ import annotations

import pytest

from chipwise import api
from chipwise.core.errors import DoesNotFit
from chipwise.explaining.cases import data_sheet_case
from chipwise.explaining.rules.fits import rule
from chipwise.serve.remedies import remedies_of


def test_the_least_change_of_each_sort_comes_first() -> None:
    weights, devices, requests = remedies_of(weights="fp8", tp=2, batch=12)
    assert [each.option for each in weights] == ["--weights int8", "--weights int4"]
    assert [each.words for each in devices] == ["4 devices", "8 devices"]
    assert [each.value for each in requests] == [6, 3, 1]


def test_one_request_cannot_become_fewer() -> None:
    assert remedies_of(weights=None, tp=8, batch=1)[1:] == ([], [])


def test_the_message_and_the_advice_say_the_same() -> None:
    """70 G parameters in 16 bits are 138 GB, in 8 bits 69; an H100 has 80 GB, two have 160."""
    model = "meta-llama/Llama-2-70b-hf"
    with pytest.raises(DoesNotFit, match="--weights fp8 or --tp 2 would fit"):
        api.estimate(model, device="h100-sxm", weights="bf16")
    said = [proposal.title for proposal in rule(data_sheet_case(model, "h100-sxm", weights="bf16"))]
    assert said == ["weights in fp8, so that it fits", "2 devices, so that it fits"]
