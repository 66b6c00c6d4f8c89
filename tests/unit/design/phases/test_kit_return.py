"""A kit's results change what a finished run by law says: expected becomes measured, and the run is ranked again."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from toy_run import LAW_RUN

import chipwise
from chipwise.api import search
from chipwise.core.files import read_json, write_json
from chipwise.deploy.measure.kit_checks import sealed
from chipwise.design.phases import kit_folder
from chipwise.design.report.record import RunRecord, load

RUN = LAW_RUN | {
    "workload": {"prompt_tokens": 128, "new_tokens": 65},
    "constraints": {"tpot_p50": "<= 12 ms", "power": "<= 90 W"},
}
ORIN = {"name": "Jetson AGX Orin", "cpu": "ARMv8 Processor", "cores": 12, "model": "NVIDIA Jetson AGX Orin"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run by law, and its kit with files that hold no weights."""

    def exported(runtime, design, folder, *, weights=None, stem="model") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.gguf").write_bytes(design.digest.encode())
        return folder / f"{stem}.gguf"

    folder = tmp_path_factory.mktemp("law") / "run"
    search({**RUN}, out=folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kit_folder, "export_for", exported)
        chipwise.kit(folder, candidates=3)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch) -> tuple[Path, RunRecord]:
    """A copy of the run, and its record."""
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    return folder, load(folder / "record.json")


def results(folder: Path, *, slower: dict[int, float], watts: float | None = 30.0, **changes: Any) -> Path:
    """What the kit script brings back: each trial as slow as promised, times ``slower`` of it (1 by default)."""
    kit = read_json(folder / "kit" / "kit.json")
    record = load(folder / "record.json")
    measured = []
    for item in kit["models"]:
        costs = record.trial(item["trial"]).predicted
        factor = slower.get(item["trial"], 1.0)
        one = {
            **{"ttft_s": [factor * costs["ttft_p50"].value] * 30, "tpot_s": [factor * costs["tpot_p50"].value] * 30},
            **{"ttft_cpu_s": [], "tpot_cpu_s": [], "facts": {}, "cpu_s": 1.0, "wall_s": 4.0, "readings": {}},
            **{"peak_memory_bytes": int(costs["peak_memory"].value), "machine": "board", "runtime_version": "b1"},
            **{"energy_j": None if watts is None else 4.0 * watts, "energy_from": "VDD_IN (board sensors)"},
        }
        measured.append({"file": item["file"], "sha256": item["sha256"], "rounds": [one]})
    data = {
        **{"schema": "chipwise.kit_results/1", "created": "2026-01-02T03:04:05Z", "complete": True},
        **{"device": kit["device"], "machine": ORIN, "threads": 4, "kit": kit, "measured": measured},
    }
    path = folder.parent / "kit-results.json"
    path.write_text(json.dumps(data | changes))
    return path


def test_expected_becomes_measured_and_the_promise_stays(run) -> None:
    folder, before = run
    winner = before.trial(before.winner)
    assert winner.measured is None
    assert winner.chances["power"] is not None
    chipwise.import_measurements(results(folder, slower={}), run=folder)
    after = search({**RUN}, out=folder, resume=True)
    assert after.winner == before.winner
    now = after.trial(after.winner)
    assert now.measured["tpot_p50"] == pytest.approx(winner.predicted["tpot_p50"].value)
    assert now.measured["power"] == pytest.approx(30.0)
    assert now.measured["joules_per_token"] == pytest.approx(
        30 * (now.measured["ttft_p50"] + 64 * now.measured["tpot_p50"]) / 65
    )
    assert now.predicted == winner.predicted
    assert now.chances == {}
    unmeasured = next(item for item in after.trials if item.measured is None)
    assert unmeasured.believed_now["tpot_p50"] != unmeasured.predicted["tpot_p50"]  # the target has learnt
    card = (folder / "card.md").read_text()
    assert re.search(r"≤ 12 ms \| met", card)
    assert re.search(r"≤ 90 W \| met", card)
    promises = read_json(folder / "winner" / "chipwise.json")
    assert promises["measured"]["power"] == pytest.approx(30.0)
    assert "tpot_p50" not in promises["expected"]
    assert promises["promised"]["tpot_p50"][0] == winner.predicted["tpot_p50"].value


def test_a_winner_that_breaks_a_limit_when_measured_wins_no_more(run) -> None:
    """The winner takes twice as long as expected, past its limit; the best of those that keep it takes its place."""
    folder, before = run
    chipwise.import_measurements(results(folder, slower={before.winner: 2.0}), run=folder)
    after = search({**RUN}, out=folder, resume=True)
    assert after.winner != before.winner
    chosen = after.trial(after.winner)
    assert chosen.measured is None or chosen.measured["tpot_p50"] <= 12e-3
    losses = {
        item.number: item.predicted["expected_loss"].value
        for item in after.trials
        if item.feasible and item.number != after.baseline and item.measured is not None
    }
    assert chosen.predicted["expected_loss"].value <= min(losses.values())
    held = read_json(folder / "winner" / "model.json")
    assert held["d_model"] == chosen.choices["d_model"]
    again = search({**RUN}, out=folder, resume=True)  # the same results are not taken twice
    assert (again.winner, len(again.trials)) == (after.winner, len(after.trials))


def test_power_that_no_meter_told_stays_expected(run) -> None:
    folder, _ = run
    chipwise.import_measurements(results(folder, slower={}, watts=None), run=folder)
    after = search({**RUN}, out=folder, resume=True)
    winner = after.trial(after.winner)
    assert "power" not in winner.measured
    assert winner.chances["power"] is not None
    assert "power" in read_json(folder / "winner" / "chipwise.json")["expected"]


def test_results_under_another_name_of_another_chip_do_not_count(run) -> None:
    """A kit may name the device freely, but results of a Raspberry Pi are not used for an Orin."""
    folder, before = run
    kit = read_json(folder / "kit" / "kit.json")
    write_json(folder / "kit" / "kit.json", sealed(kit | {"device": "my-board"}))
    pi = {"name": "Raspberry Pi 5", "cpu": "Cortex-A76", "cores": 4, "model": "Raspberry Pi 5 Model B Rev 1.0"}
    chipwise.import_measurements(results(folder, slower={before.winner: 3.0}, machine=pi), run=folder)
    after = search({**RUN}, out=folder, resume=True)
    assert after.trial(after.winner).measured is None
    assert any("do not count" in note for note in after.notes)


def seen(visit, page: Path) -> str:
    """The words that a person sees on the drawn page, on one line."""
    document, console = visit(page)
    assert console == []
    document = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", document)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", document)).split())


def part(text: str, start: str, end: str) -> str:
    begin = text.rindex(start)
    return text[begin : text.index(end, begin)]


@pytest.mark.browser
def test_a_person_sees_what_is_expected_and_then_what_was_measured(run, visit) -> None:
    """The page of the same run before and after the kit: figures, limits and the front say where they come from."""
    folder, _ = run
    text = seen(visit, folder / "report.html")
    tiles = part(text, "The winner is trial", "Constraints Checked for the winner")
    assert re.search(r"Expected loss, nats per token \d\.\d{3} expected", tiles)
    assert re.search(r"Time per output token [\d.]+ ms P50 [\d.]+ ms P99 expected", tiles)
    limits = part(text, "Constraints Checked for the winner", "Winner and reference design The")
    assert re.search(
        r"≤ 12 ms [\d.]+ ms \([\d.]+ to [\d.]+\) not measured unknown expected, (over )?\d\d % likely", limits
    )
    assert re.search(
        r"≤ 90 W [\d.]+ W \([\d.]+ to [\d.]+\) not measured unknown expected, (over )?\d\d % likely", limits
    )
    assert "Nothing was measured" in limits
    front = part(text, "Quality against cost", "Promised against measured")
    assert re.search(r"loss, nats (a|per) token \(expected\)", front)
    assert "P50 (predicted)" in front
    assert "Nothing was trained or measured" in front

    chipwise.import_measurements(results(folder, slower={}), run=folder)
    search({**RUN}, out=folder, resume=True)
    text = seen(visit, folder / "report.html")
    tiles = part(text, "The winner is trial", "Constraints Checked for the winner")
    assert re.search(r"Expected loss, nats per token \d\.\d{3} expected", tiles)  # no kit measures that
    assert re.search(r"Time per output token [\d.]+ ms P50 [\d.]+ ms P99 measured", tiles)
    limits = part(text, "Constraints Checked for the winner", "Winner and reference design The")
    assert re.search(r"≤ 12 ms .* [\d.]+ ms .*\d+ % met", limits)
    assert re.search(r"≤ 90 W .* 30 W 33 % met", limits)
    assert "expected" not in limits
    front = part(text, "Quality against cost", "Promised against measured")
    assert "measured where filled, predicted where open" in front
    assert "measured there by a kit" in text
