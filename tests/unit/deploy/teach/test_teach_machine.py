"""From a table to a device that can be named: estimates, errors, versions, foreign rows, another day."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.errors import InputError, SpecError
from chipwise.hardware import datasheet

MODELS = ("gpt2", "gpt2-medium", "Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-135M")
SLOWER = 4.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))


def asked() -> list[tuple[str, str, int]]:
    return [(model, form, prompt) for model in MODELS for form in ("q4_0", "q8_0") for prompt in (64, 512)]


def table(path: Path, *, day: float = 1.0, device: str = "", noise: float = 0.01, seed: int = 0) -> Path:
    """A Raspberry Pi 5 that is four times slower than its sheet, with a prompt's pass slower still."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "model", "quant", "prompt_tokens", "new_tokens", "ttft_ms", "tpot_ms"])
        for model, form, prompt in asked():
            sheet = chipwise.estimate(model, device="raspberry-pi-5", weights=form, prompt=prompt, new=32)
            ttft, tpot = 6 * sheet.ttft_s * day, SLOWER * sheet.tpot_s * day
            shaken = [1e3 * each * np.exp(rng.normal(0, noise)) for each in (ttft, tpot)]
            writer.writerow([device, model, form, prompt, 32, *(f"{each:.5g}" for each in shaken)])
    return path


def test_a_taught_machine_is_estimated_as_it_was_measured(tmp_path: Path) -> None:
    found = chipwise.teach("shop-box", table(tmp_path / "rows.csv"), base="raspberry-pi-5")
    assert found.teaching.rows == 16
    assert found.teaching.check.mean < 0.06 < found.teaching.check.sheet_mean
    sheet = chipwise.estimate("Qwen/Qwen3-0.6B", device="raspberry-pi-5", weights="q4_0", prompt=256, new=32)
    here = chipwise.estimate("Qwen/Qwen3-0.6B", device="shop-box", weights="q4_0", prompt=256, new=32)
    assert here.device == "shop-box"
    assert here.provenance == "predicted (taught from 16 rows, on the data sheet of raspberry-pi-5)"
    assert here.tpot_s / sheet.tpot_s == pytest.approx(SLOWER, rel=0.15)
    assert here.ttft_s / sheet.ttft_s == pytest.approx(6, rel=0.15)
    for name, truth in (("tpot_p50", SLOWER * sheet.tpot_s), ("ttft_p50", 6 * sheet.ttft_s)):
        assert here.metrics[name].low < truth < here.metrics[name].high
    narrow = here.metrics["tpot_p50"]
    assert narrow.high / narrow.low < sheet.metrics["tpot_p50"].high / sheet.metrics["tpot_p50"].low
    spent = sum(each.latency_s for each in here.decode)
    assert spent == pytest.approx(here.tpot_s, rel=0.03)  # the rest is a cost of each pass
    assert spent <= here.tpot_s


def test_it_can_be_named_wherever_a_device_can(tmp_path: Path) -> None:
    chipwise.teach("shop-box", table(tmp_path / "rows.csv"), base="raspberry-pi-5")
    both = chipwise.estimate("gpt2", devices=["shop-box", "raspberry-pi-5"], weights="q4_0")
    assert [each.device for each in both] == ["raspberry-pi-5", "shop-box"]  # fastest first
    assert chipwise.explain("gpt2", device="shop-box", weights="q4_0") is not None
    ask = CliRunner().invoke(app, ["compare", "gpt2", "gpt2-medium", "--device", "shop-box,raspberry-pi-5"])
    assert ask.exit_code == 0
    assert "shop-box" in ask.output
    asked_rows, answered = tmp_path / "asked.csv", tmp_path / "answered.csv"
    asked_rows.write_text("model,device,isl,osl,weights\ngpt2,shop-box,64,32,q4_0\n")
    chipwise.estimate_table(asked_rows, answered)
    (row,) = csv.DictReader(answered.open())
    assert "taught from 16 rows" in row["provenance"]


def test_nothing_taught_is_the_data_sheet_with_an_interval_everywhere() -> None:
    chipwise.teach("bare-box", base="jetson-orin-nano")
    sheet = chipwise.estimate("gpt2", device="jetson-orin-nano", runtime="torch")
    here = chipwise.estimate("gpt2", device="bare-box", runtime="torch")
    assert here.tpot_s == sheet.tpot_s
    assert here.ttft_s == sheet.ttft_s
    assert here.metrics["ttft_p50"].low is not None
    assert "nothing taught" in here.provenance


def test_teaching_again_adds_a_version_and_rows_can_be_kept(tmp_path: Path) -> None:
    first = chipwise.teach("shop-box", table(tmp_path / "a.csv"), base="raspberry-pi-5")
    before = first.path.read_bytes()
    second = chipwise.teach("shop-box", table(tmp_path / "b.csv", seed=1), add=True)
    assert (second.teaching.version, second.teaching.base, second.teaching.rows) == (2, "raspberry-pi-5", 32)
    assert first.path.read_bytes() == before


def test_a_name_that_ships_is_not_shadowed(tmp_path: Path) -> None:
    found = chipwise.teach("raspberry-pi-5", table(tmp_path / "rows.csv"))
    assert found.name == "raspberry-pi-5-taught"
    assert "taught" not in chipwise.estimate("gpt2", device="raspberry-pi-5").provenance


def test_rows_of_another_machine_are_refused(tmp_path: Path) -> None:
    chipwise.teach("shop-box", table(tmp_path / "a.csv", device="box A"), base="raspberry-pi-5")
    with pytest.raises(InputError, match="was taught from rows of box A, but these are of box B"):
        chipwise.teach("shop-box", table(tmp_path / "b.csv", device="box B"))
    assert datasheet.load("shop-box").taught.version == 1


def test_a_table_of_several_machines_asks_which(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("device,model,total_s\na,gpt2,1\nb,gpt2,2\n")
    with pytest.raises(SpecError, match="holds rows of 2 machines"):
        chipwise.teach("shop-box", path, base="raspberry-pi-5")
    found = chipwise.teach("shop-box", path, base="raspberry-pi-5", where={"device": "b"})
    assert found.teaching.machine == "b"
    assert found.teaching.check is None


@pytest.mark.parametrize(
    ("device", "base", "says"),
    [
        ("nobody-ships-this", None, "--base"),
        ("shop-box", "no-such-sheet", "unknown device"),
        ("a@2", "l4", "without @"),
    ],
)
def test_what_a_machine_cannot_be_taught_on(device: str, base: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("model,total_s\ngpt2,1\n")
    with pytest.raises(InputError, match=says):
        chipwise.teach(device, path, base=base)


def test_stored_measurements_of_another_machine_teach_it(tmp_path: Path) -> None:
    from chipwise.deploy.measure.measurement import Measurement
    from chipwise.deploy.measure.store import MeasurementStore
    from chipwise.model.arch.arch import uniform
    from chipwise.model.arch.design import Design
    from chipwise.model.ops.workload import Workload

    store = MeasurementStore()
    for depth in (2, 4, 6, 8):
        arch = uniform(vocab_size=1000, d_model=128, depth=depth, heads=2, ffn_width=256)
        design = Design(arch=arch, weights="fp32")
        measured = Measurement(
            design=design.digest, name=f"depth {depth}", runtime="onnxruntime", runtime_version="1", threads=1,
            workload=Workload(prompt_tokens=32, new_tokens=32), device="a colleague's", ttft_s=(2e-3 * depth,),
            tpot_s=(1e-3 * depth,), cpu_s=1.0, peak_memory_bytes=None, clean=True,
        )  # fmt: skip
        store.add(measured, design=design, source="measure on user@board")
    found = chipwise.teach("board", "measurements", base="raspberry-pi-5", where={"device": "a colleague's"})
    assert found.teaching.rows == 4
    assert found.teaching.machine == "a colleague's"
    exported = tmp_path / "rows.jsonl"
    store.export(exported)
    again = chipwise.teach("board", exported, keep=False)
    assert again.teaching.rows == 4


def test_the_command_and_its_json(tmp_path: Path) -> None:
    path = table(tmp_path / "rows.csv")
    ask = ["teach", "shop-box", "--from", str(path), "--base", "raspberry-pi-5"]
    said = CliRunner().invoke(app, ask)
    assert said.exit_code == 0, said.output
    assert "mean error on models left out" in said.output
    assert "estimate gpt2 --device shop-box" in said.output
    said = CliRunner().invoke(app, [*ask, "--json", "--dry-run"])
    data = json.loads(said.output)
    assert data["rows"] == 16
    assert data["path"] is None
    assert data["check"]["mean"] < data["check"]["sheet_mean"]


def test_devices_show_what_was_taught(tmp_path: Path) -> None:
    chipwise.teach("shop-box", table(tmp_path / "rows.csv"), base="raspberry-pi-5")
    said = CliRunner().invoke(app, ["devices", "show", "shop-box"])
    assert "shop-box@1" in said.output
    assert "taught from 16 rows" in said.output
    data = json.loads(CliRunner().invoke(app, ["devices", "show", "shop-box", "--json"]).output)
    assert data["taught"]["rows"] == 16
    assert data["name"] == "raspberry-pi-5"
    assert "machines taught by you (chipwise teach): shop-box" in CliRunner().invoke(app, ["devices"]).output


def test_importing_a_table_says_who_takes_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="chipwise teach NAME --from"):
        chipwise.import_measurements(table(tmp_path / "rows.csv"))
