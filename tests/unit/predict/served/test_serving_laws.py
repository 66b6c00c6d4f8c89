"""Laws that hold for every bundled model and device, whatever was fitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.model.published import families
from chipwise.model.published.read import resolve
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimate_of
from chipwise.predict.served.groups import cost_groups, grouped, memory_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.table import estimate_rows

MODELS = families.names()
LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("first", range(4))
def test_weights_in_16_bits_are_two_bytes_a_parameter(first: int) -> None:
    models = MODELS[first::4]
    requests = [
        Request(model=model, deployment=Deployment(device="mi355x", weights="bf16"), prompt_tokens=64)
        for model in models
    ]
    groups, errors = grouped(requests)
    assert not errors
    for group in groups:
        arch = group.setting.arch  # left out: taps of short convolutions and biases of heads
        assert memory_of(group).weights[0] == pytest.approx(2 * arch.parameters(), rel=0.002), arch.name


def test_a_table_answers_every_model_on_every_device_or_says_why_not() -> None:
    rows = [
        {"model": model, "device": device, "isl": "512", "osl": "64"}
        for model in (*MODELS[::12], "deepseek-ai/DeepSeek-V3")  # kept in FP8, which a CPU does not multiply
        for device in (*datasheet.names()[::8], "epyc-9755")
    ]
    for row in estimate_rows(rows):
        if not row["error"]:
            assert float(str(row["ttft_s"])) > 0
            assert float(str(row["low_s"])) < float(str(row["high_s"]))


def test_no_pass_is_faster_than_the_rates_of_its_device_allow() -> None:
    pairs = [(model, device) for model in MODELS[::16] for device in datasheet.names()[::8]]
    requests = [
        Request(model=model, deployment=Deployment(device=device), batch=32, new_tokens=64) for model, device in pairs
    ]
    for cost in cost_groups(grouped(requests)[0]):
        if isinstance(cost, Exception):
            continue
        found = estimate_of(cost, 0)
        for share in (*found.mfu.values(), *found.mbu.values()):
            assert 0 < share <= 1.0 + 1e-9, (cost.group.setting.arch.name, found.device)


@pytest.mark.parametrize("model", [LLAMA, "Qwen/Qwen3-30B-A3B", "sentence-transformers/all-MiniLM-L6-v2"])
@pytest.mark.parametrize("plan", [{}, {"pp": 4}, {"dp": 4}, {"tp": 2}])
@pytest.mark.parametrize("batch", [1, 16])
def test_devices_draw_between_their_floor_and_their_limit(model: str, plan: dict[str, int], batch: int) -> None:
    device = datasheet.load("h100-sxm")
    found = api.estimate(model, device="h100-sxm", batch=batch, new=64, **plan)
    watts = found.metrics["joules_per_token"].value * found.metrics["throughput"].value / found.devices
    assert 0.24 * device.board_power_w < watts < 1.05 * device.board_power_w


def test_a_stage_of_a_pipeline_keeps_the_cache_of_all_requests_for_its_layers() -> None:
    kept = {pp: api.estimate(LLAMA, pp=pp, batch=32, prompt=2000, new=48).memory_bytes for pp in (1, 2, 4)}
    # keys and values x 32 layers x 8 heads x 128 x 2 bytes x 2048 tokens x 32 requests
    assert kept[1]["cache"] == 2 * 32 * 8 * 128 * 2 * 2048 * 32
    assert kept[2]["cache"] == kept[1]["cache"] / 2
    assert kept[4]["cache"] == kept[1]["cache"] / 4
    assert kept[4]["weights"] > kept[1]["weights"] / 4  # the last stage has the head besides its layers


def test_a_stage_that_has_one_layer_more_decides() -> None:
    most = api.estimate("openai-community/gpt2", pp=5).memory_bytes["cache"]  # 12 layers: 3, 3, 2, 2, 2
    assert most == api.estimate("openai-community/gpt2", pp=4).memory_bytes["cache"]


def test_an_encoder_decoder_reads_with_its_encoder_and_answers_with_its_decoder() -> None:
    short, long = (api.estimate("google-t5/t5-large", device="l4", prompt=prompt, new=64) for prompt in (512, 4096))
    read = [cost for cost in long.prefill if cost.place.startswith("encoder")]
    assert sum(cost.latency_s for cost in read) > 0.5 * long.ttft_s
    assert not any(cost.place.startswith("encoder") for cost in long.decode)
    # keys and values of 16 heads of 64 in 24 layers: of 64 positions written, and of the 512 that were read
    assert short.memory_bytes["cache"] == 24 * 2 * (16 * 64) * (64 + 512) * 2
    heads = {cost.place: cost for cost in long.decode if cost.place.endswith("cross.attend")}
    assert all(cost.work.bytes > 4096 * 2 * 2 * 64 for cost in heads.values())  # every key and value of the prompt


def test_a_text_encoder_reads_and_makes_no_tokens() -> None:
    one, many = (api.estimate("bert-base-uncased", device="l4", prompt=128, batch=batch) for batch in (1, 64))
    assert "tpot_p50" not in many.metrics
    assert many.decode == ()
    assert many.memory_bytes["cache"] == 0
    assert one.ttft_s < many.ttft_s < 64 * one.ttft_s  # one pass over all texts
    assert many.metrics["throughput"].value == pytest.approx(64 * 128 / many.ttft_s)
    row = estimate_rows([{"model": "bert-base-uncased", "device": "l4", "isl": "128", "osl": "1", "batch": "64"}])[0]
    assert row["tpot_s"] == ""
    assert float(str(row["low_s"])) < many.ttft_s < float(str(row["high_s"]))


def test_positions_that_a_model_has_not_learned_are_noted() -> None:
    assert any("learned positions" in note for note in api.estimate("gpt2", prompt=2048).notes)
    assert not any("learned positions" in note for note in api.estimate("gpt2", prompt=512).notes)


def test_weights_that_a_device_does_not_multiply_are_noted() -> None:
    assert any("no rate for fp8" in note for note in api.estimate(LLAMA, device="a100", weights="fp8").notes)
    assert not any("no rate" in note for note in api.estimate(LLAMA, device="h100", weights="fp8").notes)


def test_a_data_sheet_may_be_given_as_it_is() -> None:
    sheet = datasheet.load("l4")
    assert api.estimate("gpt2", device=sheet).tpot_s == api.estimate("gpt2", device="l4").tpot_s


@pytest.mark.parametrize("model", ["gpt2", "bert-base-uncased", "google-t5/t5-small", "meta-llama/Llama-2-7b-hf"])
def test_adam_keeps_16_bytes_a_parameter_of_every_kind_of_model(model: str) -> None:
    step = api.estimate_training(model, device="mi355x", prompt=128)
    assert step.memory_bytes["states"] == pytest.approx(16 * resolve(model).parameters(), rel=1e-3)


def test_training_is_in_16_bits_whatever_the_checkpoint_is_kept_in() -> None:
    with pytest.raises(SpecError, match="must be bf16, fp16 or fp32 for training, not int4"):
        api.estimate_training("gpt2", weights="int4")
    assert api.estimate_training("openai/gpt-oss-20b", device="mi355x", tp=2, prompt=128).step.value > 0  # MXFP4


def test_a_pipeline_keeps_the_activations_of_as_many_microbatches_as_it_has_stages() -> None:
    asked = {"device": "h100-sxm", "prompt": 512, "batch": 16}
    whole = api.estimate_training("gpt2", microbatches=8, **asked).memory_bytes["activations"]
    staged = api.estimate_training("gpt2", microbatches=8, pp=4, **asked).memory_bytes["activations"]
    assert staged == pytest.approx(whole)


@pytest.mark.parametrize("size", [1.5, "8", True, None])
@pytest.mark.parametrize("field", ["batch", "prompt", "new", "tp"])
def test_sizes_that_are_no_whole_numbers(field: str, size: object) -> None:
    with pytest.raises(SpecError, match="must be a whole number"):
        api.estimate("gpt2", **{field: size})  # type: ignore[arg-type]


def test_a_path_is_as_good_as_its_name(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(families.config_of("gpt2")))
    assert api.estimate(config, device="l4").tpot_s == api.estimate("gpt2", device="l4").tpot_s
    assert api.explain(tmp_path, device="l4").estimate.tpot_s == api.estimate("gpt2", device="l4").tpot_s
    with pytest.raises(SpecError, match="model: must be text or a path"):
        api.estimate(None)  # type: ignore[arg-type]


def test_an_estimate_prints_as_a_tree_whose_shares_add_up() -> None:
    found = api.estimate("gpt2", device="l4")
    lines = str(found).splitlines()
    assert lines[0].startswith("l4, vllm, bf16 (defaults for this chip): TTFT ")
    groups = [line for line in lines if line.startswith(("├── ", "└── "))]
    shares = [float(line.split()[-2]) for line in groups]  # of two passes
    assert sum(shares) == pytest.approx(200, abs=0.5)
    assert sum(line.startswith(("│   ", "    ")) for line in lines) == len(found.prefill) + len(found.decode)
