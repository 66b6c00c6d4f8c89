"""``chipwise quantize`` prints what was tried and the verdict; with ``--json`` the same as data."""

from __future__ import annotations

import json
import sys

import pytest

from chipwise.cli import main
from chipwise.design.quantize import onnx_file
from chipwise.design.quantize.onnx_file import QuantisedFile, Tried

TRIED = (
    Tried(recipe="static, Conv", uniform=True, ratio=0.6, loss=0.2, upper=0.25, size_bytes=2_000_000),
    Tried(recipe="fp16", uniform=True, error="no kernel"),
)


def result(*, beaten: bool) -> QuantisedFile:
    return QuantisedFile(
        source="a.onnx",
        file="b.onnx" if beaten else None,
        formats="1 Conv static",
        limit=0.01,
        unit="relative error",
        loss=0.004 if beaten else None,
        upper=0.006 if beaten else None,
        ratio=0.7 if beaten else 1.0,
        ratio_low=0.68,
        ratio_high=0.72,
        repeatability=0.013,
        original_s=0.002,
        original_bytes=4_000_000,
        size_bytes=1_500_000,
        choosing=20,
        scored=21,
        rounds=5,
        threads=1,
        tried=TRIED,
    )


def printed(monkeypatch, capsys, answer: QuantisedFile, *options: str) -> str:
    from chipwise import api

    monkeypatch.setattr(api, "quantize", lambda *args, **kwargs: answer, raising=False)
    monkeypatch.setattr(sys, "argv", ["chipwise", "quantize", "a.onnx", "--data", "d.npz", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_fastest_file_is_named_with_its_loss_and_the_repeatability(monkeypatch, capsys) -> None:
    text = " ".join(printed(monkeypatch, capsys, result(beaten=True)).split())
    assert "measured: 70 % of the original's CPU time (68 % to 72 % in 5 rounds)" in text
    assert "the original takes 2 ms, and repeated timings of it agree within 1.3 %" in text
    assert "loss (relative error): 0.4 % on the 21 samples not used to choose; limit 1 %" in text
    assert "file: b.onnx (1.5 MB, was 4 MB)" in text
    assert "fp16: no kernel" in text


def test_no_file_says_that_none_beats_the_original(monkeypatch, capsys) -> None:
    text = " ".join(printed(monkeypatch, capsys, result(beaten=False)).split())
    assert (
        "No file within the loss limit (relative error, limit 1 %) is faster than the original; "
        "nothing was written." in text
    )
    assert "file:" not in text


def test_json_holds_every_file_that_was_tried(monkeypatch, capsys) -> None:
    data = json.loads(printed(monkeypatch, capsys, result(beaten=True), "--json"))
    assert data["ratio"] == 0.7
    assert [item["recipe"] for item in data["tried"]] == ["static, Conv", "fp16"]


def test_a_wrong_shape_is_refused_before_anything_runs(monkeypatch, capsys) -> None:
    monkeypatch.setattr(onnx_file, "quantize", None)
    monkeypatch.setattr(sys, "argv", ["chipwise", "quantize", "a.onnx", "--data", "d.npz", "--shape", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "write it like x=1,3,224,224" in capsys.readouterr().err
