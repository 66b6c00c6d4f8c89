"""Kits and results with edited or impossible values are refused with one line, and nothing is stored."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.deploy.kits import kit_script
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.errors import InputError
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform

ARCH = uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=32, max_tokens=32, name="tiny")
ESCAPE = "a\x1b[2Jb"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx", reason="exports the kit's model: pip install 'chipwise[search]'")
    folder = tmp_path_factory.mktemp("kit")
    io.save(ARCH, folder / "tiny.json")
    return chipwise.kit(folder / "tiny.json", out=folder / "kit", prompt=5, new=4).folder


@pytest.fixture(scope="module")
def sound(kit: Path) -> dict[str, Any]:
    """Results as the script writes them."""
    data = json.loads((kit / "kit.json").read_text())
    one = {
        **{name: [1e-3, 2e-3, 3e-3] for name in ("ttft_s", "tpot_s", "ttft_cpu_s", "tpot_cpu_s")},
        **{"cpu_s": 0.1, "wall_s": 0.1, "peak_memory_bytes": 10_000_000, "energy_j": None, "readings": {"lost": 0.0}},
        **{"facts": {}, "machine": "Board, 4 cores", "runtime_version": "1", "cpus": [0]},
    }
    return {
        "schema": "chipwise.kit_results/1", "created": "2026-01-02T03:04:05Z", "complete": True, "device": None,
        "machine": {"name": "Board, 4 cores", "cpu": "Board", "cores": 4, "memory_bytes": 2**32}, "threads": 4,
        "kit": data,
        "measured": [{"file": item["file"], "sha256": item["sha256"], "rounds": [one]} for item in data["models"]],
    }  # fmt: skip


ROUND = ("measured", 0, "rounds", 0)
MODEL = ("kit", "models", 0)
CASES: list[tuple[tuple[str | int, ...], object, str]] = [
    ((*MODEL, "weights"), "int4", "kit: this kit was changed"),
    ((*MODEL, "design"), "0" * 16, "kit: this kit was changed"),
    ((*MODEL, "arch"), None, "kit: this kit was changed"),
    ((*MODEL, "runtime"), "zzz", "kit: this kit was changed"),
    (("kit", "workload", "prompt_tokens"), 6, "kit: this kit was changed"),
    (("kit", "device"), float("nan"), "kit: this kit was changed"),
    ((*ROUND, "ttft_s"), [1e308], r"ttft_s: must be times from 1e-09 to 1e\+06 s, not 1e\+308"),
    ((*ROUND, "tpot_s"), [1e-300], "tpot_s: must be times from"),
    ((*ROUND, "tpot_s"), [], "generates tokens, but its tpot_s is empty"),
    ((*ROUND, "wall_s"), 0, "wall_s: must be from"),
    ((*ROUND, "wall_s"), -1, "wall_s: must be from"),
    ((*ROUND, "temperature_c"), 1e9, "temperature_c: must be from -100 to 300"),
    ((*ROUND, "clock_hz_before"), -1.0, "clock_hz_before: must be from"),
    ((*ROUND, "peak_memory_bytes"), -5, "peak_memory_bytes: must be from"),
    ((*ROUND, "cpus"), [-1], "cpus: must be processor numbers"),
    ((*ROUND, "machine"), ESCAPE, "machine: .* cannot be printed"),
    ((*ROUND, "runtime_version"), ESCAPE, "runtime_version: .* cannot be printed"),
    (("sustained",), [{"file": "m", "windows": [{"at_s": 1.0, "tpot_p50_s": 0.0, "steps": 1}]}], "tpot_p50_s: must be"),
    (("sustained",), [{"file": "m", "windows": [], "ambient_c": 1e9}], "ambient_c: must be from -100 to 100"),
    (("sustained",), [{"file": ESCAPE}], "file: .* cannot be printed"),
    (("machine", "cores"), -4, "cores: must be from 1"),
    (("machine", "memory_bytes"), -1, "memory_bytes: must be from 1"),
    (("machine", "clock_hz"), -1.0, "clock_hz: must be from"),
    (("machine", "name"), "", "name: is empty"),
    (("machine", "name"), "x" * 10_000, "name: has 10,000 characters"),
    (("machine", "name"), ESCAPE, "name: .* cannot be printed"),
    (("machine", "os"), ESCAPE, "os: .* cannot be printed"),
    (("created",), "yesterday", "created: must be a date and time"),
    (("device",), ESCAPE, "device: .* cannot be printed"),
]


@pytest.mark.parametrize(("path", "value", "says"), CASES)
def test_results_that_cannot_be(path: tuple[Any, ...], value: object, says: str, home: Path, sound: Any) -> None:
    changed = copy.deepcopy(sound)
    *folders, last = path
    place = changed
    for name in folders:
        place = place[name]
    place[last] = value
    (home / "r.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match=says) as caught:
        chipwise.import_measurements(home / "r.json")
    assert "\x1b" not in str(caught.value)
    assert not MeasurementStore().entries()


def test_what_was_imported_before_is_said(home: Path, sound: Any) -> None:
    (home / "r.json").write_text(json.dumps(sound))
    assert chipwise.import_measurements(home / "r.json").new == 1
    again = chipwise.import_measurements(home / "r.json")
    assert (again.new, again.notes) == (0, ("1 measurement was already stored",))
    MeasurementStore().export(home / "lines.jsonl")
    assert chipwise.import_measurements(home / "lines.jsonl").notes == ("1 measurement was already stored",)
    line = (home / "lines.jsonl").read_text().replace("Board, 4 cores", "B\\u001b[2J")
    (home / "lines.jsonl").write_text(line)
    with pytest.raises(InputError, match=r"line 1: device: .* cannot be printed"):
        chipwise.import_measurements(home / "lines.jsonl")


def test_no_escape_code_of_the_store_reaches_the_terminal(home: Path, sound: Any) -> None:
    """As an older version may have stored it."""
    (home / "r.json").write_text(json.dumps(sound))
    chipwise.import_measurements(home / "r.json")
    (item,) = MeasurementStore().entries()
    import dataclasses

    MeasurementStore().add(dataclasses.replace(item.measurement, device=ESCAPE, name=ESCAPE), source=ESCAPE)
    for arguments in (["measurements"], ["measurements", "--json"], ["measurements", "show", "0"]):
        assert "\x1b[2J" not in CliRunner().invoke(app, arguments).output


def test_a_text_file_is_no_graph_and_a_folder_in_use_is_left_alone(home: Path) -> None:
    pytest.importorskip("onnx", reason="reads graphs: pip install 'chipwise[search]'")
    (home / "x.onnx").write_text("hello")
    with pytest.raises(InputError, match=r"x\.onnx: not an ONNX file"):
        chipwise.kit(home / "x.onnx", out=home / "kit")
    (home / "used").mkdir()
    (home / "used" / "thesis.tex").write_text("mine")
    io.save(ARCH, home / "tiny.json")
    with pytest.raises(InputError, match=r"used: holds other files \(thesis\.tex\)"):
        chipwise.kit(home / "tiny.json", out=home / "used")
    assert [path.name for path in (home / "used").iterdir()] == ["thesis.tex"]
    (home / "again").mkdir()
    (home / "again" / "kit-results-20260102-030405.json").write_text("{}")  # of an earlier kit, measured in its folder
    chipwise.kit(home / "tiny.json", out=home / "again", prompt=5, new=4)


@pytest.mark.parametrize(
    "change", [{"models": [None]}, {"models": None}, {"workload": []}, {"threads": "4"}, {"models": [{"file": 3}]}]
)
def test_the_script_names_a_damaged_list(change: dict[str, Any], home: Path, sound: Any) -> None:
    (home / "kit.json").write_text(json.dumps(sound["kit"] | change))
    with pytest.raises(kit_script.KitError, match="is damaged"):
        kit_script._read_kit(home)


@pytest.mark.parametrize(("out", "says"), [("/dev/full", "is not a file"), ("no/such/r.json", "there is no folder")])
def test_the_script_writes_beside_no_device(out: str, says: str) -> None:
    with pytest.raises(kit_script.KitError, match=says):
        kit_script._free_name(Path(out))
