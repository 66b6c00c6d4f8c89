"""Pictures, parts on phones and watts of whole runs, as ``estimate`` answers them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.errors import DoesNotFit, SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.predict.whole_runs.phone_models import catalogue, model_called


def asked(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("model", "asked", "measured_s", "watts"),
    [  # ml-energy/leaderboard 0cd52da, one B200
        ("Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers", {"batch": 4, "steps": 20}, 1.831, 738),
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", {}, 74.0, 831),
    ],
)
def test_pictures_take_about_what_was_measured(
    model: str, asked: dict[str, int], measured_s: float, watts: float
) -> None:
    found = api.estimate_pictures(model, device="b200-sxm", **asked)
    seconds, power = found.metrics["latency_s"], found.metrics["power_w"]
    assert seconds.low is not None
    assert seconds.high is not None
    assert seconds.low <= measured_s <= seconds.high
    assert power.value == pytest.approx(watts, rel=0.25)


def test_energy_is_power_times_time_and_price_is_rate_times_time() -> None:
    found = api.estimate_pictures("stable-diffusion-3.5-medium", device="h100-sxm", batch=4, devices=2)
    each_s = found.latency_s / 4
    assert found.metrics["joules_per_image"].value == pytest.approx(found.metrics["power_w"].value * each_s)
    usd_per_s = 2 * datasheet.load("h100-sxm").price_usd_per_s
    assert found.metrics["usd_per_1k_images"].value == pytest.approx(1000 * usd_per_s * each_s)
    assert found.metrics["images_per_s"].value == pytest.approx(1 / each_s)


def test_a_chip_unlike_those_of_the_fit_has_a_wider_interval_and_says_so() -> None:
    near, far = (api.estimate_pictures("flux.1-schnell", device=device) for device in ("h100-sxm", "rtx-4090"))
    widths = [each.metrics["latency_s"].log_halfwidth or 0.0 for each in (near, far)]
    assert widths[0] < widths[1]
    assert any("vendor" in note for note in far.notes)
    assert not near.notes


def test_pictures_that_cannot_be_answered() -> None:
    with pytest.raises(UnknownName, match=r"flux\.1"):
        api.estimate_pictures("flux.9")
    with pytest.raises(DoesNotFit, match="26 GB in bf16"):  # 13e9 parameters of two bytes
        api.estimate_pictures("hunyuanvideo", device="rtx-4090")
    with pytest.raises(SpecError, match="steps"):
        api.estimate_pictures("flux.1-schnell", steps=0)
    with pytest.raises(Unsupported, match="16-bit"):
        api.estimate_pictures("sana1.5_1.6b", device="hailo-10h")


def test_parts_of_a_model_on_a_phone() -> None:
    found = api.estimate_parts("openai/whisper-small", device="Samsung Galaxy S25")
    assert [each.part for each in found] == ["decoder", "encoder"]
    whole, eight = (api.estimate_parts("vit", device="qcs9075", weights=weights)[0] for weights in ("float", "w8a16"))
    assert 1.5 < whole.latency_s / eight.latency_s < 2.5  # measured on an IQ-9075: 14.877 and 7.572 ms
    seen, chip = (
        api.estimate_parts("vit", device=device)[0] for device in ("Samsung Galaxy S25", "snapdragon-8-elite")
    )
    assert (seen.metrics["latency_s"].log_halfwidth or 0) < (chip.metrics["latency_s"].log_halfwidth or 0)


def test_names_of_hubs_mean_models_of_the_catalogue() -> None:
    assert model_called("openai/whisper-small") == "whisper_small"
    assert model_called("openai/clip") == "openai_clip"
    assert model_called("nobody/nothing") is None
    assert len(catalogue().models) > 200


def test_parts_that_cannot_be_answered() -> None:
    with pytest.raises(Unsupported, match="Qualcomm"):
        api.estimate_parts("vit", device="apple-m4")
    with pytest.raises(UnknownName, match="encoder"):
        api.estimate_parts("whisper_small", part="encodr")
    with pytest.raises(UnknownName, match="litert"):
        api.estimate_parts("vit", runtime="lite-rt")


def test_served_power_is_within_the_boards_limit_and_grows_with_requests() -> None:
    watts = []
    for batch in (1, 16, 128):
        metrics = api.estimate("Qwen/Qwen3-14B", device="h100-sxm", batch=batch, prompt=100, new=600).metrics
        watts.append(metrics["served_power_w"].value)
        assert metrics["served_joules_per_token"].low is not None
    assert watts == sorted(watts)
    assert watts[-1] <= 700
    assert "served_power_w" not in api.estimate("gpt2", device="apple-m4").metrics


def test_the_command_answers_pictures_and_parts() -> None:
    assert "diffusers" in asked("pictures", "flux.1-dev", "--steps", "20")
    picture = json.loads(asked("pictures", "flux.1-dev", "--steps", "20", "--json"))
    assert asked("estimate", "flux.1-dev", "--batch", "2") == asked("pictures", "flux.1-dev", "--batch", "2")
    assert picture["metrics"]["latency_s"]["low"] < picture["metrics"]["latency_s"]["value"]
    assert picture["provenance"].startswith("predicted")
    parts = json.loads(asked("parts", "openai/whisper-small", "--part", "encoder", "--json"))
    assert [(each["part"], each["runtime"]) for each in parts] == [("encoder", "Qualcomm QNN")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("flux.1-dev", "--prompt", "10"), "language models"),
        (("whisper_small", "--batch", "2"), "language models"),
        (("flux.1-dev", "--device", "all"), "one device at a time"),
        (("vit", "--device", "apple-m4"), "Qualcomm"),
    ],
)
def test_options_of_another_sort_of_model_are_refused(arguments: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, ["estimate", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code != 0
    assert told in result.output + str(result.exception)
