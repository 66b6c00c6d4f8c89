"""Finalists with a format for each matrix: what is chosen is exported, decides and ships, unless it breaks a limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from chipwise.core import units
from chipwise.core.page.markup import safe
from chipwise.deploy.export.onnx import random_weights
from chipwise.design.phases import finals as finals_module
from chipwise.design.phases.finals import Finals, promises_of
from chipwise.design.phases.matrix_formats import chosen_by_matrix, narrow_forms, select_formats
from chipwise.design.report import by_matrix
from chipwise.design.report.words import Words
from chipwise.design.run.spec import RunSpec, run_spec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.tasks.protocol import Losses, task_named

RUN: dict[str, Any] = {
    "name": "tiny",
    "task": "ranking",
    "constraints": {"ttft_p50": "<= 1 ms"},
    "space": {
        "ranking": {"items": 24, "history": 4, "candidates": 6, "mixing": ["attention"]},
        "d_model": [16],
        "depth": [1, 2],
        "head_size": [8],
        "layer": {"heads": [2], "ffn": ["relu"], "ffn_width": [32]},
        "weights": ["int8", "fp32"],
    },
}
SPEC = run_spec(RUN, file="run.yaml")
SPACE = SearchSpace(SPEC.space)
CHOSEN = {
    "weights": "fp32 0.up:int8",
    "fused": ["qkv", "up"],
    "seconds": 8e-5,
    "fp32_seconds": 9e-5,
    "loss": 0.6,
    "fp32_loss": 0.6,
    "tried": [],
}


class Target:
    """A fake bench with given times by format, which records every file."""

    measures, limits = True, ()

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.seen = seconds, []

    def predict(self, design: Design) -> dict[str, list[float]]:
        return {"ttft_p50": [1e-4, 1e-4, 1e-4]}

    def alternately(self, paths: list[Path]) -> list[str]:
        self.seen.append([weights_of(path) for path in paths])
        return self.seen[-1]


def weights_of(path: Path) -> str:
    facts = {item.key: item.value for item in onnx.load(path).metadata_props}["chipwise"]
    return str(json.loads(facts)["weights"])


def contest(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], *, spec: RunSpec = SPEC) -> Any:
    """A trained candidate in int8 and its finals; what is measured follows from the formats in the file."""
    study = Study(None, name="tiny", directions=["minimize"] * 2, identity="tiny", choices=choice_labels(SPACE))
    spec = replace(spec, quantiser="nearest")  # needs no data
    trials = Trials(study, spec, SPACE)
    number = trials.add(SPACE.sample(1, np.random.default_rng(0))[0], predicted={"ttft_p50": [1e-4, None, None]})
    arch = trials[number].design.arch
    save_file(random_weights(arch, seed=0), folder / "weights.safetensors")
    rung = {"rung": 0, "cpu_s": 1.0, "tokens": 1, "loss": 0.6, "quantised_loss": 0.6, "weights": "weights.safetensors"}
    trials.trained(number, {**rung, "curve": []})
    target = Target(seconds)
    home = SimpleNamespace(trial=lambda number: folder / str(number), training=lambda arch: folder, path=folder)

    def losses(item: Any, *, split: str) -> Losses:
        return Losses(values=np.array([0.6]), sizes=np.ones(1))

    def notes(spec: Any, found: str, *, final: bool, **_: Any) -> dict[str, Any]:
        return {"measured": {"ttft_p50": target.seconds[found]}, "final": final, "loudness": 0.5, "clean": True}

    monkeypatch.setattr(finals_module, "run_notes", notes)
    monkeypatch.setattr(finals_module, "select_formats", lambda *_, **__: CHOSEN | {"kept": True})
    data = SimpleNamespace(losses=losses, recipe={}, samples=lambda winner, reference: {}, data=lambda arch: None)
    return Finals(trials, spec, home, data, target), trials, number


def test_the_file_that_was_chosen_is_measured_and_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finals, trials, number = contest(tmp_path, monkeypatch, {"fp32 0.up:int8": 9e-4})
    item = trials[number]
    winner = finals.decide([item], None)
    assert winner.design == Design(arch=item.design.arch, weights="fp32 0.up:int8", fused=("qkv", "up"))
    assert finals._target.seen == [["fp32 0.up:int8"]]
    assert promises_of(SPEC, winner)["weights"] == "fp32 0.up:int8"
    assert promises_of(SPEC, winner)["fused"] == ("qkv", "up")
    samples = finals.samples(winner, None)
    with_task = SimpleNamespace(samples=samples, words=Words(task_named("ranking")))
    shown = by_matrix.by_matrix(with_task)
    assert "fp32 0.up:int8" in shown
    assert safe(units.show(8e-5, "time", digits=3)) in shown
    again = finals.decide([trials[number]], None)  # a resumed run chooses nothing anew
    assert again.design == winner.design
    assert len(finals._target.seen) == 1


def test_where_the_choice_breaks_a_limit_the_searched_format_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finals, trials, number = contest(tmp_path, monkeypatch, {"fp32 0.up:int8": 2e-3, "int8": 5e-4, "fp32": 5e-4})
    searched = trials[number].design.weights
    winner = finals.decide([trials[number]], None)
    assert winner.design.weights == searched
    assert finals._target.seen == [["fp32 0.up:int8"], [searched]]
    assert winner.measured == {"ttft_p50": 5e-4}
    assert weights_of(tmp_path / str(number) / "model.onnx") == searched


@pytest.mark.parametrize(
    "change", [{"target": {"device": "h100-sxm"}}, {"space": RUN["space"] | {"weights": ["int8"]}}]
)
def test_nothing_is_chosen_where_nothing_is_timed_or_fp32_is_not_wanted(change: dict[str, Any]) -> None:
    assert chosen_by_matrix(SPEC, Target({}))
    assert not chosen_by_matrix(run_spec(RUN | change, file="run.yaml"), Target({}))
    assert not chosen_by_matrix(SPEC, None)


def test_a_choice_on_this_machine_is_no_slower_and_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loss that the file really has: here each int8 product adds a thousandth of the gain, so none may stay."""
    _, trials, number = contest(tmp_path, monkeypatch, {})
    item = trials[number]
    weights = random_weights(item.design.arch, seed=0)

    def losses(tried: Any, *, split: str) -> Losses:
        assert split == "validation"
        return Losses(values=np.array([0.5 + 0.001 * len(tried.design.formats.matrices)]), sizes=np.ones(1))

    found = select_formats(
        item, weights, tmp_path, spec=SPEC, data=SimpleNamespace(losses=losses), predict=Target({}).predict
    )
    assert found["weights"] == "fp32"
    assert found["loss"] == found["fp32_loss"] == 0.5
    assert found["seconds"] <= found["fp32_seconds"]
    assert {row["name"] for row in found["tried"]} >= {"0.qkv", "0.out", "0.up", "0.down"}
    assert narrow_forms(SPEC.space) == ["int8"]
