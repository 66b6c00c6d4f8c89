"""``chipwise explain`` and ``chipwise compare`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.deploy.measure.store import profile_path
from chipwise.errors import InputError
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.io import save
from support.machines import round_machine

runner = CliRunner()


def printed(*arguments: str) -> str:
    outcome = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_the_screen_says_verdict_waterfall_memory_and_advice() -> None:
    text = printed("explain", "meta-llama/Llama-3.1-8B", "--device", "a100-sxm-80gb")
    for wanted in ("Decode is memory-bound", "bandwidth limit", "Memory", "Saturation", "Advice", "weights in int8"):
        assert wanted in text
    assert "(uncertain)" not in text


def test_all_shows_what_was_tried() -> None:
    assert "(uncertain)" in printed("explain", "gpt2", "--device", "a100-sxm-80gb", "--all")


def test_json_holds_the_same(tmp_path: Path) -> None:
    data = json.loads(printed("explain", "gpt2", "--device", "l4", "--json"))
    assert data["schema"] == "chipwise.explanation/1"
    assert sum(part["seconds"] for part in data["phases"][1]["parts"]) == pytest.approx(data["phases"][1]["seconds"])


def test_the_page_stands_alone(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    printed("explain", "gpt2", "--device", "a100-sxm-80gb", "--html", str(out))
    page = out.read_text()
    assert page.count("plotly.js v") <= 1
    assert "<script src" not in page
    assert 'rel="stylesheet"' not in page
    assert 'id="plot-roofline"' in page
    for key in ("waterfall-prefill", "waterfall-decode"):
        assert f'id="{key}"' in page


def test_here_is_this_machine_as_calibrated(tmp_path: Path) -> None:
    spec = tmp_path / "tiny.json"
    save(uniform(vocab_size=512, d_model=64, depth=8, heads=4, ffn_width=128, max_tokens=256), spec)
    with pytest.raises(InputError, match="chipwise calibrate"):
        api.explain(str(spec), device="here", threads=7)
    round_machine().save(profile_path("onnxruntime", 5))
    text = printed("explain", str(spec), "--device", "here", "--threads", "5", "--prompt", "32", "--new", "8")
    assert "at the rates that calibration measured on this machine" in " ".join(text.split())
    with pytest.raises(InputError, match="256 positions"):
        api.explain(str(spec), device="here", threads=5, prompt=300)


def test_models_are_compared_in_a_table() -> None:
    text = printed("compare", "gpt2", "openai-community/gpt2-medium", "--device", "l4,t4", "--weights", "fp16")
    assert "l4, TPOT: gpt2" in text
    data = json.loads(printed("compare", "gpt2", "--device", "l4", "--json"))
    assert data["cells"][0]["metrics"]["tpot_p50"]["value"] > 0


def test_a_training_step_is_explained_with_advice() -> None:
    asked = ("explain", "gpt2", "--device", "a100-sxm-80gb", "--train", "--batch", "12", "--prompt", "1024")
    text = printed(*asked)
    assert "Training is compute-bound" in text
    assert "a training step" in text
    data = json.loads(printed(*asked, "--json"))
    assert "vocabulary" in {each["rule"] for each in data["advice"]}


def test_shared_tokens_bring_advice_about_them() -> None:
    text = printed("explain", "meta-llama/Llama-3.1-8B", "--prompt", "2048", "--shared", "1536")
    assert "1,536 of them shared by all" in text
    assert "1,536 tokens that all prompts share are computed once" in " ".join(text.split())
