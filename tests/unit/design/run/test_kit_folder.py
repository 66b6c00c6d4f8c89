"""Kits of a run: which models are packed, and which results count when they come back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chipwise
from chipwise.core.digest import plain
from chipwise.core.files import write_json
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.kits.kits import read_kit
from chipwise.design.phases.kit_folder import FinishedRun, kit_results
from chipwise.design.phases.measuring import measurement_notes
from chipwise.design.report import record as rec
from chipwise.design.run.spec import RunSpec, run_spec
from chipwise.errors import InputError, SpecError, StudyError
from chipwise.hardware.detect import detect
from chipwise.model.arch.io import to_data
from chipwise.model.ops.workload import Workload
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.cost.model import Predicted
from chipwise.predict.cost.spending import Rates


def spec_of(**changes: Any) -> RunSpec:
    data = {
        "name": "toy",
        "workload": {"prompt_tokens": 6, "new_tokens": 4},
        "space": {
            "d_model": [32],
            "depth": [1, 2],
            "vocab_size": [512],
            "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [32, 64, 96]},
        },
        "data": {},
    }
    return run_spec(data | changes, file="toy.yaml")


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch) -> Path:
    """The folder of a finished run: trial 1 is the winner, 0 the reference design, 2 to 6 are the front."""
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    return finished(tmp_path / "run", spec_of())


def finished(folder: Path, spec: RunSpec) -> Path:
    space = SearchSpace(spec.space)
    rows = np.unique(space.sample(200, np.random.default_rng(0)), axis=0)[:7]
    assert len(rows) == 7
    trials = tuple(
        rec.Trial(
            number=number,
            state="trained",
            summary="toy",
            weights="fp32",
            choices=space.choices(row),
            predicted={"tpot_p50": Predicted(value=1e-3 * (number + 1), low=1e-3, high=9e-3)},
        )
        for number, row in enumerate(rows)
    )
    record = rec.RunRecord(
        name="toy",
        created="2026-01-01T00:00:00Z",
        version="0",
        status="finished",
        seed=0,
        target=rec.Target(device="local", runtime="onnxruntime"),
        workload=spec.workload,
        budget=rec.Budget(cpu_s=1.0),
        space=rec.SpaceSummary(size=12),
        trials=trials,
        winner=1,
        baseline=0,
        front=(1, 6, 2, 3, 4, 5),
    )
    folder.mkdir()
    (folder / "study.journal").touch()
    write_json(folder / "spec.json", {"identity": spec.identity, "spec": plain(spec)})
    rec.save(record, folder / "record.json")
    write_winner(folder, spec, record)
    return folder


def write_winner(folder: Path, spec: RunSpec, record: rec.RunRecord, *, seed: int = 0) -> None:
    design = design_of(record.trials[1].choices, spec=spec.space)
    winner = folder / "winner"
    winner.mkdir(exist_ok=True)
    export(design, random_weights(design.arch, seed=seed), winner / "model.onnx")
    file = {
        **{"schema": "chipwise.winner/1", "arch": to_data(design.arch), "weights": design.weights},
        **{"target": plain(spec.target), "workload": plain(spec.workload), "constraints": {}, "promised": {}},
    }
    write_json(winner / "chipwise.json", file)


def results_of(run: Path, *, tpot_s: float = 1e-3, created: str = "2026-01-02T03:04:05Z", **changes: Any) -> Path:
    """Results of the run's kit as its script writes them; trial n takes n + 1 times ``tpot_s`` a step."""
    kit = json.loads((run / "kit" / "kit.json").read_text())
    measured = []
    for item in kit["models"]:
        step = [tpot_s * (item["trial"] + 1)] * 5
        one = {
            **{"ttft_s": [2e-3] * 5, "ttft_cpu_s": [2e-3] * 5, "tpot_s": step, "tpot_cpu_s": step, "facts": {}},
            **{"cpu_s": 0.1, "wall_s": 0.1, "peak_memory_bytes": 10_000_000, "energy_j": None},
            **{"readings": {"lost": 0.0}, "machine": "here", "runtime_version": "1"},
        }
        measured.append({"file": item["file"], "sha256": item["sha256"], "rounds": [one]})
    data = {
        **{"schema": "chipwise.kit_results/1", "created": created, "complete": True, "device": kit["device"]},
        **{"machine": {"name": kit["machine"] or "A", "cpu": "A", "cores": 1}, "threads": 1},
        **{"kit": kit, "measured": measured},
    }
    path = run.parent / "kit-results.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_winner_reference_and_an_even_part_of_the_front_are_packed(run: Path) -> None:
    """Of the front's trials 2, 3, 4, 5, 6 (slower and slower) three are the ends and the middle."""
    packed = chipwise.kit(run, device="my-board", candidates=3)
    assert [(item.trial, item.role) for item in packed.kit.models] == [
        (1, "winner"),
        (0, "reference"),
        (2, "front"),
        (4, "front"),
        (6, "front"),
    ]
    assert packed.folder == run / "kit"
    assert packed.kit.workload == Workload(prompt_tokens=6, new_tokens=4)
    assert (run / "kit" / "models" / "1.onnx").read_bytes() == (run / "winner" / "model.onnx").read_bytes()
    opened = FinishedRun.open(run)
    for item in packed.kit.models:
        assert item.design == opened.design(item.trial).digest
    assert [item.trial for item in chipwise.kit(run, device="my-board", candidates=0).kit.models] == [1, 0]
    assert len(list((run / "kit" / "models").iterdir())) == 2  # the others of the first kit are gone


def test_those_that_may_take_the_winners_place_are_packed(run: Path) -> None:
    """Trials 0 to 6 were trained, 1, 3, 4, 5 and 6 in full; 5 and 3 predict best after the winner."""
    record = json.loads((run / "record.json").read_text())
    bits = {0: 1.0, 1: 1.0, 2: 0.5, 3: 1.3, 4: 1.5, 5: 1.2, 6: 1.4}
    for trial in record["trials"]:
        trial |= {"rung": 0 if trial["number"] == 2 else 1, "quantised_loss": bits[trial["number"]]}
    (run / "record.json").write_text(json.dumps(record))
    roles = {item.trial: item.role for item in chipwise.kit(run, device="my-board", candidates=1).kit.models}
    assert {number for number, role in roles.items() if role == "finalist"} == {3, 5}
    assert [item.trial for item in chipwise.kit(run, device="my-board", candidates=0).kit.models] == [1, 0]


def test_a_run_for_this_machine_makes_a_kit_for_this_machine(run: Path) -> None:
    assert chipwise.kit(run).kit.machine == detect().name
    with pytest.raises(SpecError, match="measured on B, but the kit was made for"):
        chipwise.import_measurements(results_of(run, machine={"name": "B", "cpu": "B", "cores": 1}))


@pytest.mark.parametrize(
    ("target", "device", "layers"),
    [
        ({"device": "m4", "runtime": "llama.cpp"}, "apple-m4", -1),  # by its data sheet's name, on its GPU
        ({"device": "raspberry-pi-5", "runtime": "llama.cpp"}, "raspberry-pi-5", 0),
        ({"device": "ssh:me@board", "like": "raspberry-pi-5"}, "me@board", 0),
    ],
)
def test_the_target_of_a_run_is_the_device_of_its_kit(tmp_path, target, device, layers) -> None:
    run = finished(tmp_path / "other", spec_of(target=target))
    packed = chipwise.kit(run, candidates=0, runtime="onnxruntime").kit
    assert (packed.device, packed.machine, packed.gpu_layers) == (device, None, layers)


def test_results_are_filed_and_found_by_trial(run: Path) -> None:
    chipwise.kit(run, device="my-board", candidates=1)
    assert kit_results(run) == {}
    found = chipwise.import_measurements(results_of(run))
    assert found.run == run
    measured = kit_results(run)
    assert {number: item.metric("tpot_p50") for number, item in measured.items()} == {
        0: pytest.approx(1e-3),
        1: pytest.approx(2e-3),
        2: pytest.approx(3e-3),
    }
    assert {item.device for item in measured.values()} == {"my-board"}
    assert kit_results(run, device="another") == {}
    assert kit_results(run, runtime="llama.cpp") == {}


def test_the_newest_of_two_results_counts(run: Path) -> None:
    chipwise.kit(run, device="my-board", candidates=0)
    chipwise.import_measurements(results_of(run, tpot_s=4e-3, created="2026-01-03T00:00:00Z"))
    chipwise.import_measurements(results_of(run, tpot_s=7e-3, created="2026-01-02T00:00:00Z"))
    assert kit_results(run)[0].metric("tpot_p50") == pytest.approx(4e-3)
    assert len(list((run / "kit" / "results").iterdir())) == 2


def test_a_kit_written_elsewhere_is_known_to_its_run(run: Path, tmp_path) -> None:
    folder = chipwise.kit(run, device="my-board", out=tmp_path / "stick", candidates=0).folder
    assert folder == tmp_path / "stick"
    assert read_kit(run / "kit" / "kit.json") == read_kit(folder / "kit.json")
    assert not (run / "kit" / "models").exists()
    chipwise.import_measurements(results_of(run))
    assert set(kit_results(run)) == {0, 1}


def test_results_of_a_run_that_moved_are_filed_by_name(run: Path, tmp_path) -> None:
    chipwise.kit(run, device="my-board", candidates=0)
    path = results_of(run)
    moved = run.rename(tmp_path / "moved")
    found = chipwise.import_measurements(path)
    assert found.run is None
    assert "give its folder: --run FOLDER" in found.notes[0]
    assert chipwise.import_measurements(path, run=moved).run == moved
    assert set(kit_results(moved)) == {0, 1}


def test_results_older_than_the_model_do_not_count(run: Path) -> None:
    """The winner is exported anew: its results are of another file; those of the reference design still hold."""
    chipwise.kit(run, device="my-board", candidates=0)
    path = results_of(run)
    chipwise.import_measurements(path)
    opened = FinishedRun.open(run)
    write_winner(run, opened.spec, opened.record, seed=1)
    told: list[str] = []
    assert set(kit_results(run, on_note=told.append)) == {0}
    assert "models/1.onnx, trial 1, has changed since the kit was packed" in told[0]
    assert "winner/model.onnx was written again" in told[0]
    assert "has changed" in chipwise.import_measurements(path).notes[0]
    only = json.loads(path.read_text())
    only["measured"] = only["measured"][:1]
    with pytest.raises(SpecError, match=r"trial 1, has changed .*; pack it again with: chipwise kit"):
        chipwise.import_measurements(results_of(run, measured=only["measured"]))


def test_results_of_a_former_winner_still_count(run: Path) -> None:
    """Another trial wins, and its model replaces the one in the winner's folder: that does not change the first."""
    chipwise.kit(run, device="my-board", candidates=1)
    chipwise.import_measurements(results_of(run))
    opened = FinishedRun.open(run)
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | {"winner": 2}))
    design = opened.design(2)
    export(design, random_weights(design.arch, seed=0), run / "winner" / "model.onnx")
    stated = json.loads((run / "winner" / "chipwise.json").read_text())
    write_json(run / "winner" / "chipwise.json", stated | {"arch": to_data(design.arch)})
    assert set(kit_results(run)) == {0, 1, 2}


def test_a_run_begun_anew_with_other_designs_takes_no_old_results(run: Path) -> None:
    chipwise.kit(run, device="my-board", candidates=1)
    path = results_of(run)
    record = json.loads((run / "record.json").read_text())
    for here, there in ((0, 5), (2, 6)):
        record["trials"][here]["choices"] = record["trials"][there]["choices"]
    (run / "record.json").write_text(json.dumps(record))
    told = chipwise.import_measurements(path).notes
    assert sum("another design now" in text for text in told) == 2
    assert set(kit_results(run)) == {1}


def test_results_of_another_run_are_refused(run: Path, tmp_path) -> None:
    other = finished(tmp_path / "other", spec_of(seed=1))
    chipwise.kit(run, device="my-board", candidates=0)
    with pytest.raises(SpecError, match=r"these are results of another run \(toy, in .*\), not of"):
        chipwise.import_measurements(results_of(run), run=other)
    assert kit_results(other) == {}


def test_two_machines_under_one_name_are_refused(run: Path) -> None:
    chipwise.kit(run, device="my-board", candidates=0)
    chipwise.import_measurements(results_of(run))
    with pytest.raises(SpecError, match="measured on B, but earlier results of this run"):
        chipwise.import_measurements(results_of(run, machine={"name": "B", "cpu": "B", "cores": 1}))
    assert kit_results(run)[0].metric("tpot_p50") == pytest.approx(1e-3)


def test_what_is_no_run_or_has_nothing_yet_says_so(run: Path, tmp_path) -> None:
    with pytest.raises(StudyError, match="holds no run"):
        FinishedRun.open(tmp_path)
    with pytest.raises(InputError, match="prompt: the run"):
        chipwise.kit(run, prompt=5)
    record = json.loads((run / "record.json").read_text())
    (run / "record.json").write_text(json.dumps(record | {"winner": None, "baseline": None, "front": [], "trials": []}))
    (run / "winner" / "chipwise.json").unlink()
    with pytest.raises(StudyError, match="neither a winner nor a Pareto front yet"):
        chipwise.kit(run)
    (run / "record.json").unlink()
    with pytest.raises(StudyError, match=r"no record.json yet; write it with: chipwise report"):
        chipwise.kit(run)


def test_a_kit_of_a_run_measures_both_prompts_of_a_spread_and_a_long_load(tmp_path) -> None:
    """The long prompt is 40 times the short one; what was measured so holds over the spread, with no prediction."""
    spec = spec_of(
        workload={"prompt_tokens": {"p50": 6, "p99": 240}, "new_tokens": 4},
        constraints={"ttft_p99": "<= 1 s", "tpot_sustained": "<= 1 s"},
    )
    home = finished(tmp_path / "spread", spec)
    kit = chipwise.kit(home, candidates=0).folder
    packed = read_kit(kit / "kit.json")
    assert (packed.prompt_p99, packed.sustained_s) == (240, 600)
    assert "6 or 240 prompt tokens" in (kit / "README.md").read_text()
    quick = ("--rounds", "2", "--steps", "20", "--prefills", "3", "--seconds", "0.01", "--sustained", "5")
    subprocess.run([sys.executable, "-I", "kit.py", *quick], cwd=kit, check=True, capture_output=True, timeout=120)
    found = chipwise.import_measurements(kit / "kit-results.json")
    assert [item.workload.prompt_tokens for item in found.measurements] == [6, 240, 6, 240]
    taken = kit_results(home)
    assert all(item.environment["longest"]["prompt_tokens"] == 240 for item in taken.values())
    assert all(item.environment["longest"]["ttft_p50"] > 1.5 for item in taken.values())
    kept = [item.environment["kept"] for item in taken.values() if "kept" in item.environment]
    assert len(kept) == 1
    assert 0 < kept[0] <= 1
    predicted = {"tpot_sustained": (1.0, None, None)}
    for item in taken.values():
        notes: Any = measurement_notes(item, Rates(), final=True, predicted=predicted, prompt_p99=240)
        assert notes["measured"]["ttft_p99"] > item.metric("ttft_p99")
        if "kept" in item.environment:
            assert notes["measured"]["tpot_sustained"] == item.metric("tpot_p50") / item.environment["kept"]
        else:
            assert "tpot_sustained" not in notes["measured"]
