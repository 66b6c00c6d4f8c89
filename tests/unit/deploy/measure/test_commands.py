"""``chipwise measure`` and ``chipwise measurements`` as a user runs them, on the fake runtime."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from chipwise.cli.app import app
from chipwise.cli.measured import drift_sentence, measurement_table
from chipwise.deploy.measure.drift import Drift
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.design.limits import parse_constraints
from chipwise.errors import InputError
from chipwise.hardware.detect import instructions
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform
from chipwise.model.ops.workload import Workload

RUN = CliRunner()
pytestmark = pytest.mark.usefixtures("measured_once")


@pytest.fixture
def spec(tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "spec.json"
    io.save(uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64, max_tokens=64, name="tiny"), path)
    return str(path)


def ask(*arguments: str) -> str:
    done = RUN.invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_measure_then_list_export_delete_import(spec: str, tmp_path) -> None:
    said = " ".join(ask("measure", spec, "--runtime", "fake", "--batch", "2", "--prompt", "4", "--new", "5").split())
    for words in ("ttft_p50", "tpot_p99", "measured (95 %)", "tokens/s", "energy", "unavailable", "batch 2", "clean"):
        assert words in said
    assert f"instruction set {instructions() or 'unknown'}" in said
    (row,) = json.loads(ask("measurements", "--json"))
    assert (row["runtime"], row["source"]) == ("fake", "measure")
    assert row["id"] in ask("measurements", "show", row["id"][:8])
    kept = json.loads(ask("measurements", "show", row["id"], "--json"))
    assert len(kept["measurement"]["tpot_s"]) >= 200
    out = str(tmp_path / "mine.jsonl")
    assert json.loads(ask("measurements", "export", out, "--json"))["exported"] == 1
    assert json.loads(ask("measurements", "delete", row["id"], "--json")) == {"deleted": 1}
    assert json.loads(ask("measurements", "list", "--json")) == []
    assert json.loads(ask("measurements", "import", out, "--json"))["imported"] == 1


def test_what_is_not_to_be_kept_is_not(spec: str) -> None:
    ask("measure", spec, "--runtime", "fake", "--prompt", "4", "--new", "5", "--no-keep", "--json")
    assert "no measurements yet" in ask("measurements")


def test_sustained_load_shows_its_curve(spec: str) -> None:
    said = ask("measure", spec, "--runtime", "fake", "--prompt", "4", "--new", "5", "--sustained", "2 s")
    assert "TPOT over 2" in said
    assert "not calibrated" in said


def test_what_makes_no_sense_is_refused(spec: str, tmp_path) -> None:
    (tmp_path / "model.onnx").touch()
    for asked, said in (
        ([spec, "--sustained", "0 s"], "sustained_s: must be"),
        ([str(tmp_path / "model.onnx"), "--weights", "int4"], "is already exported"),
    ):
        with pytest.raises(InputError, match=said):
            RUN.invoke(app, ["measure", *asked], catch_exceptions=False)


def test_an_encoder_is_listed_with_what_it_has(spec: str) -> None:
    ask("measure", spec, "--runtime", "fake", "--prompt", "4", "--new", "5")
    store = MeasurementStore()
    store.add(dataclasses.replace(store.entries()[0].measurement, tpot_s=(), name="encoder"), source="test")
    rows = json.loads(ask("measurements", "--json"))
    assert [row["tpot_p50_s"] is None for row in rows if row["name"] == "encoder"] == [True]
    assert "encoder" in ask("measurements")
    assert "holds no measurements of phone" in ask("measurements", "--device", "phone")


@pytest.mark.parametrize(
    ("prefill", "decode", "sentence"),
    [
        (1.15, 0.8, "the machine is 15 % slower in prefill and 25 % faster in decode than when it was calibrated; "),
        (1.01, 1.02, "1 % slower in prefill and 2 % slower in decode than when it was calibrated, within the scatter"),
    ],
)
def test_drift_is_one_plain_sentence(prefill: float, decode: float, sentence: str) -> None:
    since = Drift(prefill_slowdown=prefill, decode_slowdown=decode, log_halfwidth=0.05)
    found = Measurement(
        design="",
        name="toy",
        runtime="fake",
        runtime_version="1",
        threads=1,
        workload=Workload(),
        device="toy",
        ttft_s=(0.02,) * 3,
        tpot_s=(0.01,) * 3,
        cpu_s=1.0,
        peak_memory_bytes=None,
        clean=True,
        drift=since,
    )
    assert sentence in drift_sentence(found)
    assert ("corrected TTFT P50" in drift_sentence(found)) == (prefill == 1.15)


def test_tokens_a_second_are_those_of_whole_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """Two requests of 11 tokens: a prompt of 20 ms and ten steps of 10 ms take 0.12 s, so 22 / 0.12 = 183 tokens/s."""
    found = Measurement(
        design="",
        name="toy",
        runtime="fake",
        runtime_version="1",
        threads=1,
        workload=Workload(prompt_tokens=8, new_tokens=11, batch=2),
        device="toy",
        ttft_s=(0.02,) * 5,
        tpot_s=(0.01,) * 50,
        cpu_s=1.0,
        peak_memory_bytes=None,
        clean=True,
    )
    limits = parse_constraints({"throughput": ">= 200 tokens/s"})
    measurement_table(found, promised={"throughput": (190.0, 170.0, 210.0)}, limits=limits)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("throughput")]
    assert " ".join(row.split()) == ("throughput 183 tokens/s 190 tokens/s (170 to 210) >= 200 tokens/s broken")
