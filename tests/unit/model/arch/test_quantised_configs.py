"""What published checkpoints say of their formats, as their config.json spells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.model.published import families
from chipwise.model.published.quantised import Stored, default_weights, stored, stored_at

FLOAT8 = {"num_bits": 8, "type": "float"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


def group(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights, "input_activations": inputs}}}


@pytest.mark.parametrize(
    ("config", "weights", "cache"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", None),  # deepseek-ai/DeepSeek-V3
        ({"quant_method": "fbgemm_fp8"}, "fp8", None),  # meta-llama/Llama-3.1-405B-FP8
        ({"quant_method": "mxfp4"}, "mxfp4", None),  # openai/gpt-oss-20b
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128", None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", None),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, "int4_g32", None),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", None),
        ({"quant_method": "compressed-tensors", **group(FLOAT8, FLOAT8), "kv_cache_scheme": FLOAT8}, "fp8", "fp8"),
        ({"quant_method": "compressed-tensors", **group(FLOAT8 | {"strategy": "block"})}, "fp8_block", None),
        ({"quant_method": "compressed-tensors", **group(INT8, INT8)}, "w8a8", None),
        ({"quant_method": "compressed-tensors", **group(INT8)}, "int8", None),
        ({"quant_method": "compressed-tensors", **group({"num_bits": 4, "group_size": 32})}, "int4_g32", None),
        ({"quant_method": "compressed-tensors", **group({"num_bits": 4, "type": "float"})}, "nvfp4", None),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8", "fp8"),
    ],
)
def test_formats_of_published_checkpoints(config: dict[str, Any], weights: str, cache: str | None) -> None:
    assert stored(config) == Stored(weights=weights, cache=cache)


@pytest.mark.parametrize(
    "config", [{"quant_method": "hqq"}, {"quant_method": "gptq", "bits": 3}, {"quant_method": "compressed-tensors"}]
)
def test_what_is_not_read_asks_for_the_format(config: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="name the format"):
        stored(config)


def write(folder: Path, **more: Any) -> Path:
    config = {**families.config_of("Qwen/Qwen3-0.6B"), **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_is_priced_in_the_format_that_it_is_kept_in(tmp_path: Path) -> None:
    wide = api.estimate(str(write(tmp_path)), device="l4").memory_bytes["weights"]
    kept = {"quant_method": "awq", "bits": 4, "group_size": 128}
    narrow = api.estimate(str(write(tmp_path, quantization_config=kept)), device="l4").memory_bytes["weights"]
    # of 0.596 G parameters the table's 0.156 G stay wide; the others go from 2 bytes to (4 + 20 / 128) bits
    assert wide - narrow == pytest.approx(0.440e9 * (2 - (4 + 20 / 128) / 8), rel=0.01)


def test_a_config_that_is_not_quantised_ships_in_16_bits(tmp_path: Path) -> None:
    assert default_weights(str(write(tmp_path))) is None
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert stored_at(tmp_path) == Stored(weights="nvfp4")


def test_explain_takes_a_config_as_estimate_does(tmp_path: Path) -> None:
    found = api.explain(str(write(tmp_path, quantization_config={"quant_method": "fp8"})), device="h100-sxm")
    assert found.case.question.weights == "fp8"
    assert found.estimate.tpot_s == api.estimate(str(tmp_path), device="h100-sxm").tpot_s


def test_a_config_that_was_changed_is_read_again(tmp_path: Path) -> None:
    before = api.estimate(str(write(tmp_path)), device="l4").memory_bytes["weights"]
    after = api.estimate(str(write(tmp_path, num_hidden_layers=14)), device="l4").memory_bytes["weights"]
    assert after < 0.7 * before  # half of 28 layers
