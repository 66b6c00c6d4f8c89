"""Tabulated step times against the kernels priced at a step's own sizes."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.errors import Unsupported
from chipwise.predict.load.step_times import step_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.request import Request

ARRANGEMENTS = [
    ("meta-llama/Llama-3.1-8B", "h100-sxm", 1),
    ("Qwen/Qwen3-14B", "l40s", 2),
    ("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", 2),
]


@pytest.mark.parametrize(("model", "device", "tp"), ARRANGEMENTS)
def test_the_interpolation_error_is_what_is_stated(model: str, device: str, tp: int) -> None:
    table = step_times([Request(model=model, deployment=Deployment(device=device, tp=tp))])[0]
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(40):
        n, context = int(2 ** rng.uniform(0, 8)), int(2 ** rng.uniform(6, 13))
        step = cost_of(
            Request(
                model=model, deployment=Deployment(device=device, tp=tp), batch=n, prompt_tokens=context, new_tokens=2
            )
        )
        errors.append(table.decode_s(n, context + 1) / step.step_s[0] - 1)
        prompt = cost_of(
            Request(model=model, deployment=Deployment(device=device, tp=tp), prompt_tokens=context, new_tokens=1)
        )
        errors.append(table.mixed_s(0, 0, [(context, 0)]) / prompt.prefill_s[0] - 1)
    assert np.quantile(np.abs(errors), 0.9) < 0.03
    assert np.median(np.abs(errors)) < 0.01


def test_many_arrangements_are_priced_as_one_by_one() -> None:
    asked = [
        Request(model="Qwen/Qwen3-0.6B", deployment=Deployment(device=name, weights=each))
        for name in ("l4", "h100-sxm")
        for each in ("bf16", "fp8")
    ]
    together = step_times(asked)
    for request, table in zip(asked, together, strict=True):
        assert table.decode_s(7, 900) == pytest.approx(step_times([request])[0].decode_s(7, 900))


def test_what_a_device_cannot_do_is_answered_beside_the_others() -> None:
    asked = [
        Request(model="Qwen/Qwen3-0.6B", deployment=Deployment(device="l4")),
        Request(model="google-t5/t5-small", deployment=Deployment(device="l4")),
    ]
    fine, refused = step_times(asked)
    assert fine.decode_s(1, 100) > 0
    assert isinstance(refused, Unsupported)
    assert "encoder and a decoder" in str(refused)


def test_a_chunk_later_in_a_prompt_attends_to_more() -> None:
    table = step_times([Request(model="Qwen/Qwen3-0.6B", deployment=Deployment(device="l4"))])[0]
    times = [table.chunk_attention_s(512, past) for past in (0, 300, 2048, 20_000)]
    assert times == sorted(times)
    assert times[0] < times[-1]
