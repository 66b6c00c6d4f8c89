"""Requests and training steps that make no sense are refused; what is unusual but possible gets a note."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.predict.served.formats import Formats, formats_of, wide_format

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


def test_the_name_of_formats_and_those_of_each_layer() -> None:
    """Names: mixtures by their experts, one name for layers that differ, wide layers in the activations' format."""
    plain = Formats(weights="bf16", experts="mxfp4", activations="bf16", cache="fp8", wide_layers=frozenset({1}))
    assert plain.stated == "mxfp4"
    assert plain.of_layer(0) is plain
    assert (plain.of_layer(1).weights, plain.of_layer(1).experts, plain.of_layer(1).wide_layers) == (
        "bf16", "bf16", frozenset(),
    )  # fmt: skip
    mixed = replace(plain, layers=("int8", "fp8", "int4"))
    assert mixed.stated == "mixed"
    assert [mixed.of_layer(i).stated for i in range(3)] == ["int8", "bf16", "int4"]
    assert mixed.of_layer(2).weights == "int4"
    assert mixed.of_layer(2).layers == ()
    assert (plain.head, plain.table) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("asked", "weights", "experts", "activations", "cache"),
    [
        ({"weights": None}, "bf16", "bf16", "bf16", "bf16"),
        ({"weights": None, "wide": "fp32"}, "fp32", "fp32", "fp32", "fp32"),
        ({"weights": "fp16", "wide": "fp32"}, "fp16", "fp16", "fp16", "fp16"),
        ({"weights": "int8", "wide": "fp16", "cache": "fp8"}, "int8", "int8", "fp16", "fp8_e4m3"),
        ({"weights": "mxfp4"}, "mxfp4", "mxfp4", "bf16", "bf16"),
        ({"weights": "mxfp4", "mixture": True}, "bf16", "mxfp4", "bf16", "bf16"),
        ({"weights": "int8", "mixture": True}, "int8", "int8", "bf16", "bf16"),
    ],
)
def test_formats_of_what_is_asked(asked, weights: str, experts: str, activations: str, cache: str) -> None:
    """Activations are as wide as unquantised weights; of mixtures in 4 bits the experts alone are narrow."""
    found = formats_of(**asked)
    assert (found.weights, found.experts, found.activations) == (weights, experts, activations)
    assert found.cache in (cache, cache.partition("_")[0])


def test_the_widest_default_is_what_the_device_multiplies() -> None:
    card, core = datasheet.load("h100-sxm"), datasheet.load("core-i7-13700k")
    assert wide_format(card) == "bf16"
    assert wide_format(core, runtime_named("onnxruntime")) == "fp32"
    for listed, name in ((("fp32", "fp16"), "fp16"), (("int8", "fp32"), "fp32"), (("int8",), "bf16")):
        older = SimpleNamespace(peak_flops_per_s=dict.fromkeys(listed, 1.0))
        assert wide_format(older) == name  # type: ignore[arg-type]
