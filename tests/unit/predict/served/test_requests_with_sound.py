"""Seconds of sound and images in a request: every command that prices one gives the answer of ``estimate``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.errors import InputError, SpecError

WHISPER, VOXTRAL, QWEN = "openai/whisper-tiny", "mistralai/Voxtral-Mini-3B-2507", "Qwen/Qwen2-VL-2B-Instruct"


@pytest.mark.parametrize("model", [WHISPER, VOXTRAL, "facebook/wav2vec2-base-960h"])
def test_explain_and_compare_hear_as_long_as_estimate(model: str) -> None:
    asked = {"prompt": 64, "new": 8, "audio_s": 12.0}
    found = api.estimate(model, device="l4", **asked)
    usual = api.estimate(model, device="l4", prompt=64, new=8)
    assert found.ttft_s != usual.ttft_s
    explained = api.explain(model, device="l4", **asked)
    assert explained.estimate.ttft_s == pytest.approx(found.ttft_s)
    cell = api.compare([model], devices=["l4"], **asked).at(model, "l4")
    assert cell.estimate.ttft_s == pytest.approx(found.ttft_s)


def test_a_model_that_does_not_hear_is_refused() -> None:
    with pytest.raises(SpecError, match="gpt2 does not take audio"):
        api.explain("gpt2", device="l4", audio_s=3.0)
    with pytest.raises(SpecError, match="gpt2 does not take audio"):
        api.compare([WHISPER, "gpt2"], devices=["l4"], audio_s=3.0)
    with pytest.raises(InputError, match="training step"):
        api.explain(WHISPER, device="l4", audio_s=3.0, train=True)


def test_a_table_has_columns_of_images_and_sound(tmp_path: Path) -> None:
    """Rows are answered as single estimates are; without the columns a table looks as it did."""
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    path.write_text(
        "model,device,isl,osl,images,image_size,audio_s\n"
        f"{WHISPER},l4,1,8,,,12\n{QWEN},l4,100,8,2,1280x720,\n{QWEN},l4,100,8,,,\n"
        f"{QWEN},l4,100,8,1,large,\ngpt2,l4,100,8,,,3\n{WHISPER},l4,1,8,,,long\n"
    )
    assert api.estimate_table(path, out) == (6, 3)
    rows = list(csv.DictReader(out.open()))
    singles = [
        api.estimate(WHISPER, device="l4", prompt=1, new=8, audio_s=12.0),
        api.estimate(QWEN, device="l4", prompt=100, new=8, images=2, image_size=(1280, 720)),
        api.estimate(QWEN, device="l4", prompt=100, new=8),
    ]
    for row, single in zip(rows, singles, strict=False):
        assert float(row["ttft_s"]) == pytest.approx(single.ttft_s, rel=1e-5)
    assert rows[1]["image_size"] == "1280x720"
    assert "image_size: must be a width and a height" in rows[3]["error"]
    assert "does not take audio" in rows[4]["error"]
    assert "must be a number of seconds" in rows[5]["error"]
    path.write_text(f"model,device,isl,osl\n{QWEN},l4,100,8\n")
    api.estimate_table(path, out)
    assert "images" not in out.read_text().partition("\n")[0]


def test_the_commands_take_audio() -> None:
    asked = [WHISPER, "--device", "l4", "--audio", "12", "--new", "8"]
    said = CliRunner().invoke(app, ["explain", *asked])
    assert said.exit_code == 0, said.output
    assert "12 s of sound" in said.output
    said = CliRunner().invoke(app, ["compare", *asked, "--json"])
    assert said.exit_code == 0, said.output
    said = CliRunner().invoke(app, ["explain", *asked, "--train"])
    assert said.exit_code == 2
