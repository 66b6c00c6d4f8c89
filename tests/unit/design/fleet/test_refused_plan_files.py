"""Plans' and load tests' files that were changed or cut are refused by field before any of them is used."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import chipwise
from chipwise.design.fleet.load_tests import check, read_load_test
from chipwise.design.fleet.plan_files import known_of, read_plan
from chipwise.errors import SpecError

ASKED: dict[str, Any] = {
    "rate": 20, "prompt": 200, "new": 40, "devices": ["l4"], "tp": [1], "weights": ["bf16"], "requests": 60,
    "limits": {"ttft_p99": "1 s"},
}  # fmt: skip
GONE = object()
RESULTS = {"mean_ttft_ms": 50.0, "mean_tpot_ms": 6.0}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    chipwise.plan("Qwen/Qwen3-0.6B", out=path, **ASKED)
    return path, json.loads(path.read_text())


def changed(held: dict[str, Any], where: str, value: object) -> dict[str, Any]:
    """``held`` with the value at a dotted path, whose ``*`` is the first key; GONE takes it out."""
    found = copy.deepcopy(held)
    *path, last = where.split(".")
    part: Any = found
    for name in path:
        part = part[0] if isinstance(part, list) else part[next(iter(part)) if name == "*" else name]
    last = next(iter(part)) if last == "*" else last
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return found


def all_refuse(good: Path, bad: Path, message: str) -> None:
    """``--resume`` and ``check`` refuse ``bad`` alike."""
    results = bad.with_name("results.json")
    results.write_text(json.dumps(RESULTS))
    question = read_plan(good).question
    for use in (
        lambda: known_of(bad, question),
        lambda: check(bad, results),
    ):
        with pytest.raises(SpecError, match=rf"bad\.json: .*{message}"):
            use()


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("answer.question", None, r"answer\.question: must be a mapping"),
        ("answer.question", [1], r"answer\.question: must be a mapping"),
        ("answer.question", GONE, r"answer\.question: must be a mapping"),
        ("answer.question.rate_per_s", "x", r"answer\.question\.rate_per_s: must be a number"),
        ("answer.question.classes", [], r"answer\.question\.classes: must name at least one"),
        ("answer.question.colour", 1, r"answer\.question\.colour: unknown field"),
        ("answer.options", "x", r"answer\.options: must be a list"),
        ("answer.options", {"a": 1}, r"answer\.options: must be a list"),
        ("answer.options", [None], r"answer\.options\[0\]: must be a mapping"),
        ("answer.options", [], r"answer\.options: a finished plan must have at least one"),
        ("answer.options.0.times", None, r"answer\.options\[0\]\.times: must be a mapping"),
        ("answer.options.0.times.ttft_p99", "x", r"options\[0\]\.times\.ttft_p99: must be a mapping"),
        ("answer.options.0.times.ttft_p99", {"value": "x"}, r"times\.ttft_p99.*value: must be a number"),
        ("answer.options.0.times.ttft_p99", {"value": -1.0, "low": -2.0, "high": 0.0}, r"must be a time of at least 0"),
        ("answer.options.0.times.ttft_p99", {"value": 1.0, "low": 2.0, "high": 3.0}, r"within its 90 % interval"),
        ("answer.options.0.replicas", -1, r"options\[0\]\.replicas: must be at least 1"),
        ("answer.options.0.chance", 7, r"options\[0\]\.chance: must be from 0 to 1"),
        ("answer.options.0.usd_per_h", -1, r"options\[0\]\.usd_per_h: must be at least 0"),
        ("known", GONE, r"known: must be a mapping, not nothing"),
        ("known", [1], r"known: must be a mapping"),
        ("known.*", None, r"known\..*: must be a mapping"),
        ("known.*", {"x": "y"}, r"known\..*\.x: must be a number"),
        ("known.*", {"n": float("nan")}, r"known\..*\.n: must be a finite number"),
        ("known.*", {}, r"known\..*\.in_flight: this field is missing"),
        ("known.*.ttft_p99", GONE, r"known\..*\.ttft_p99: this field is missing"),
        ("known.*.ttft_p99", -1.0, r"known\..*\.ttft_p99: must be at least 0, not -1"),
        ("known.*.colour", 1.0, r"known\..*\.colour: is not a field of a replay"),
        ("answer", None, "is not a plan file"),
        ("format", "chipwise plan 7", "is not a plan file"),
    ],
)  # fmt: skip
def test_a_changed_plan_is_refused_by_field(
    good: tuple[Path, dict[str, Any]], tmp_path: Path, where: str, value: object, message: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(changed(good[1], where, value)))
    all_refuse(good[0], bad, message)


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_plan_with_a_number_that_no_float_holds_is_refused(
    good: tuple[Path, dict[str, Any]], tmp_path: Path, digits: int
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(good[1]).replace('"rate_per_s": 20.0', f'"rate_per_s": {"9" * digits}'))
    all_refuse(good[0], bad, f"is not a plan file .*a number of {digits:,} digits")


def test_an_interrupted_plan_is_resumed_and_not_checked(good: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, results = tmp_path / "half.json", tmp_path / "results.json"
    path.write_text(json.dumps(good[1] | {"answer": {"question": good[1]["answer"]["question"]}}))
    results.write_text(json.dumps(RESULTS))
    assert known_of(path, read_plan(good[0]).question) == good[1]["known"]
    with pytest.raises(SpecError, match="this plan is unfinished"):
        check(path, results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{{"mean_ttft_ms": {"9" * 400}}}', "a number of 400 digits"),
        (f'{{"mean_ttft_ms": {"9" * 5000}}}', "a number of 5,000 digits"),
        ('{"mean_ttft_ms": -5}', r"mean_ttft_ms: -5 is not a time"),
        ('{"mean_ttft_ms": 0}', r"mean_ttft_ms: 0 is not a time"),
        ('{"mean_ttft_ms": 1e308}', r"mean_ttft_ms: 1e\+308 is not a time"),
        ('{"mean_ttft_ms": "5"}', r"mean_ttft_ms: must be a number"),
        ('{"mean_ttft_ms": true}', r"mean_ttft_ms: must be a number"),
        ('{"mean_ttft_ms": 5, "mean_tpot_ms": -1}', r"mean_tpot_ms: -1 is not a time"),
        ('{"mean_ttft_ms": 5, "request_throughput": -2}', r"request_throughput: -2 is not a rate"),
        ('{"latency": {"time_to_first_token": {"mean": -1}}}', r"latency\.time_to_first_token\.mean: -1 is not a time"),
        ('{"time_to_first_token": {"unit": "fortnights", "avg": 5}}', r"time_to_first_token\.unit: 'fortnights' is no"),
        ('{"time_to_first_token": {"unit": [], "avg": 5}}', r"time_to_first_token\.unit: \[\] is not a unit"),
        ('{"time_to_first_token": {"unit": "ms", "avg": 0}}', r"time_to_first_token\.avg: 0 is not a time"),
        ('{"mean_tpot_ms": 0}', "must be a result of"),
        ('{"time_to_first_token": 5}', "time_to_first_token: must be a mapping of statistics"),
        ('{"latency": {"time_to_first_token": [5]}}', r"latency\.time_to_first_token: must be a mapping of statistics"),
        ("[" * 5000, "nested too deep|not valid JSON"),
    ],
)  # fmt: skip
def test_what_no_load_test_measures_is_refused_by_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=rf"results\.json: .*({message})"):
        read_load_test(path)


def test_a_test_of_single_tokens_has_no_time_per_token(tmp_path: Path) -> None:
    """vLLM writes a TPOT of 0 where no request had a second token."""
    path = tmp_path / "results.json"
    path.write_text('{"mean_ttft_ms": 50.0, "mean_tpot_ms": 0.0, "p99_tpot_ms": 0.0}')
    assert read_load_test(path).times == {"ttft_mean": 0.05}
