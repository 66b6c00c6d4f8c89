"""Traces that hold what no log of requests does are refused by request and field; odd but honest ones are answered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.errors import SpecError
from chipwise.predict.load.traces import read_trace

ROW = {"arrival_s": 0, "prompt_tokens": 9, "new_tokens": 1}


def lines(*rows: dict[str, object]) -> str:
    return "\n".join(json.dumps({**ROW, **row}) for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines({}).replace(": 0", ": " + "9" * 400), r"line 1: .*a number of 400 digits"),
        (lines({}).replace(": 0", ": " + "9" * 5000), r"line 1: .*a number of 5,000 digits"),
        (lines({}, {"arrival_s": True}), r"request 2: arrival_s must be a number, not True"),
        (lines({"prompt_tokens": True}), r"request 1: prompt_tokens must be a number, not True"),
        (lines({"new_tokens": False}), r"request 1: new_tokens must be a number, not False"),
        (lines({"class": [1]}), r"request 1\.class: must be a name or a whole number, not a list"),
        (lines({"prefix": True}), r"request 1\.prefix: must be a name or a whole number, not true or false"),
        (
            lines({"prefix": "a", "prefix_tokens": 10}),
            r"request 1\.prefix_tokens: 10 exceeds the prompt's 9 tokens",
        ),
        (
            lines({}, {"arrival_s": 1e300}),
            r"the last .* 1e\+300 s after the first request: check that the times are in seconds",
        ),
        ("arrival_s,prompt_tokens,new_tokens\n0,9,1\n1,9,1,7\n", r"request 2: has more values than the table has"),
        ('{"a":' * 5000, r"line 1: .*nested too deep"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(SpecError, match=rf"trace: {message}"):
        read_trace(path)


@pytest.mark.parametrize("rows", [1, 60])
def test_requests_that_arrive_at_once_are_simulated_and_have_no_rate_to_plan_for(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(*[{}] * rows))
    with pytest.raises(SpecError, match=r"trace\.jsonl: all requests arrive at once"):
        chipwise.plan("gpt2", trace=path, devices=["l4"], tp=[1])
    found = chipwise.simulate("gpt2", trace=path, device="l4", seeds=1)
    assert found.requests == rows
    assert found.offered_per_s is None


def test_every_request_may_have_a_class_of_its_own(tmp_path: Path) -> None:
    """Numbered by what came first; reading takes time in proportion to the rows."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "\n".join(f'{{"timestamp": {i}, "prompt_tokens": 9, "new_tokens": 1, "class": "c{i}"}}' for i in range(20_000))
    )
    load, names = read_trace(path)
    assert len(names) == 20_000
    assert np.array_equal(load.kind, np.arange(20_000))
