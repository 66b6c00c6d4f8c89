"""This machine as a device of estimate and compare."""

from __future__ import annotations

from pathlib import Path

import pytest

import chipwise
from chipwise.core.errors import InputError
from chipwise.cost.request import throughput
from chipwise.profile.store import profile_path
from chipwise.testing.machines import round_machine


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    profile = round_machine()
    path = profile_path("onnxruntime", 1)
    path.parent.mkdir(parents=True)
    profile.save(path)


@pytest.mark.usefixtures("calibrated")
def test_an_estimate_here_is_what_is_explained_here() -> None:
    found = chipwise.estimate("gpt2", device="here", prompt=64, new=16)
    assert found.tpot_s == chipwise.explain("gpt2", device="here", prompt=64, new=16).estimate.tpot_s
    assert found.tpot_s == chipwise.estimate("gpt2", device="local", prompt=64, new=16).tpot_s
    rate = found.metrics["throughput"]
    assert rate.value == pytest.approx(throughput(found.ttft_s, found.tpot_s, 16, 1))
    first, step = found.metrics["ttft_p50"], found.metrics["tpot_p50"]
    assert rate.low == pytest.approx(throughput(first.high, step.high, 16, 1))
    with pytest.raises(InputError, match="one device"):
        chipwise.estimate("gpt2", device="here", prompt=64, new=16, tp=2)


@pytest.mark.usefixtures("calibrated")
def test_this_machine_stands_beside_data_sheets_and_one_bad_model_spoils_nothing() -> None:
    found = chipwise.compare(["gpt2", "bert-base-uncased"], devices=["here", "l4"], prompt=512, new=100)
    assert set(found.devices) == {"here", "l4"}
    assert found.at("gpt2", "here").estimate.tpot_s > found.at("gpt2", "l4").estimate.tpot_s
    assert "512 positions" in found.at("bert-base-uncased", "here").problem
    alone = chipwise.compare(["gpt2"], devices=["here"], prompt=64)
    assert alone.devices == ("here",)
    assert chipwise.estimate("gpt2", devices=["here", "l4"], prompt=64)[0].device == "l4"


def test_without_calibration_one_line_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    for ask in (
        lambda: chipwise.estimate("gpt2", device="here"),
        lambda: chipwise.compare(["gpt2"], devices=["local"]),
    ):
        with pytest.raises(InputError, match=r"not calibrated in onnxruntime .*run: chipwise calibrate"):
            ask()
