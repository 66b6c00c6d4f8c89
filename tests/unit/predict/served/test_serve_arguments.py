"""Requests and training steps that make no sense are refused; what is unusual but possible gets a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.hardware import datasheet

TOY = """
name: acme-1
title: Acme One
vendor: Acme
family: acme
architecture: a1
kind: gpu
year: 2026
engines:
  - {name: matrix, kind: matrix, part: gpu, peak: {bf16: {value: %s, source: "Acme data sheet"}}}
memory:
  - name: dram
    capacity: {value: 80 GB, source: "Acme data sheet"}
    bandwidth: {value: 2 TB/s, source: "Acme data sheet"}
"""


@pytest.mark.parametrize("bad", [0, -1, float("nan"), 2.5, True])
@pytest.mark.parametrize("field", ["batch", "prompt", "microbatches"])
def test_a_training_step_of_nothing_is_refused(field: str, bad: float) -> None:
    with pytest.raises(SpecError, match=rf"{field}: must"):
        api.estimate_training("gpt2", **{field: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["weights", "kv"])
def test_an_empty_format_is_refused(field: str) -> None:
    with pytest.raises(SpecError, match=f"{field}: must"):
        api.estimate("gpt2", device="l4", **{field: ""})  # type: ignore[arg-type]


def test_a_prompt_beyond_the_models_context_gets_a_note() -> None:
    within, beyond = (api.estimate("meta-llama/Llama-3.1-8B", prompt=tokens) for tokens in (1_000, 200_000))
    assert not any("context" in note for note in within.notes)
    assert any("made for a context of 131,072 tokens; the request needs 200,128" in note for note in beyond.notes)


def test_replicas_without_a_request_get_a_note() -> None:
    found = api.estimate("gpt2", device="l4", dp=7, batch=3)
    assert "3 requests keep 3 of 7 replicas busy" in found.notes


@pytest.mark.parametrize("peak", ["1e300 TFLOP/s", "1e30 FLOP/s", "0 FLOP/s"])
def test_a_device_file_with_an_impossible_rate_is_refused(tmp_path: Path, peak: str) -> None:
    path = tmp_path / "acme.yaml"
    path.write_text(TOY % peak)
    with pytest.raises(SpecError, match=r"acme\.yaml.*value"):
        datasheet.load(str(path))


def test_a_vendor_that_does_not_ship_may_run_anything(tmp_path: Path) -> None:
    path = tmp_path / "acme.yaml"
    path.write_text(TOY % "100 TFLOP/s")
    for runtime in (None, "trtllm", "llama.cpp"):
        assert api.estimate("gpt2", device=str(path), runtime=runtime).tpot_s > 0
