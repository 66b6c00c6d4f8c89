"""A search that trains nothing: what its folder holds, what it refuses, and that its winner keeps the limits."""

from __future__ import annotations

import json

import pytest
from toy_run import LAW_RUN as RUN

from chipwise.api import search
from chipwise.design.run.spec import run_spec
from chipwise.errors import Infeasible, SpecError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("law") / "run"
    return folder, search({**RUN}, out=folder)


def test_the_winner_keeps_its_limit_with_the_runs_confidence(run) -> None:
    _, record = run
    winner = record.trial(record.winner)
    assert winner.measured is None
    assert winner.chances["tpot_p50"] >= 0.9
    assert winner.predicted["tpot_p50"].value < 12e-3


def test_no_recorded_candidate_is_expected_to_be_better(run) -> None:
    _, record = run
    loss = {trial.number: trial.predicted["expected_loss"].value for trial in record.trials}
    assert loss[record.winner] == min(loss[n] for n in loss if n != record.baseline)
    assert len(loss) > 2


def test_the_folder_holds_a_plan_and_says_that_nothing_was_trained(run) -> None:
    folder, _ = run
    promises = json.loads((folder / "winner" / "chipwise.json").read_text())
    assert promises["trained"] is False
    assert promises["measured"] is None
    assert {"model.json", "training.json", "train.sh", "config.json"} <= {p.name for p in (folder / "winner").iterdir()}
    assert "expected" in (folder / "card.md").read_text()


def test_a_finished_run_gives_the_same_answer_again(run) -> None:
    folder, record = run
    again = search({**RUN}, out=folder, resume=True)
    assert (again.winner, again.baseline, len(again.trials)) == (record.winner, record.baseline, len(record.trials))


def test_other_limits_go_on_in_the_same_folder(tmp_path) -> None:
    """Tighter ones need another winner; what was recorded is kept; and back, the first winner wins again, untouched."""
    first = search({**RUN}, out=tmp_path / "run")
    tight = {**RUN, "constraints": {"tpot_p50": "<= 6 ms"}}
    second = search(tight, out=tmp_path / "run", resume=True)
    assert second.winner != first.winner
    assert second.trial(second.winner).chances["tpot_p50"] >= 0.9
    assert second.trial(second.baseline).predicted["tpot_p50"].value < 6e-3
    promised = {trial.number: trial.predicted for trial in second.trials}
    assert all(promised[trial.number] == trial.predicted for trial in first.trials)
    again = search({**RUN}, out=tmp_path / "run", resume=True)
    assert (again.winner, again.baseline) == (first.winner, first.baseline)
    assert len(again.trials) == len(second.trials)
    with pytest.raises(SpecError, match=r"^budget\.tokens: was"):
        search({**RUN, "budget": {"tokens": "7B"}}, out=tmp_path / "run", resume=True)


def test_a_limit_out_of_reach_is_said(tmp_path) -> None:
    with pytest.raises(Infeasible, match="tpot_p50"):
        search({**RUN, "constraints": {"tpot_p50": "<= 10 us"}}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "study.journal").exists()  # the folder is free for the next try


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": {"cpu": "10 min"}}, "budget: a law predicts the loss after a number of training tokens"),
        ({"target": {"device": "local"}}, "target.device: `quality: law` trains and measures nothing"),
        ({"data": {"source": "medical-definitions"}}, "data: `quality: law` trains nothing"),
        ({"objectives": {"bits_per_byte": "minimize"}}, "objectives: must contain expected_loss: minimize"),
        ({"quality": {"method": "law", "plan_device": "no-such"}}, "quality.plan_device: unknown device"),
        ({"quality": {"method": "auto", "law": "runs.csv"}}, "quality.law: only valid for `method: law`"),
        ({"space": RUN["space"] | {"norm": ["rmsnorm", "layernorm"]}}, "space.norm_place: scaling laws describe"),
        ({"space": RUN["space"] | {"norm_place": ["pre", "post"]}}, "space.norm_place: scaling laws describe"),
        ({"space": RUN["space"] | {"layer": RUN["space"]["layer"] | {"ffn": ["swiglu", "none"]}}},
         "space.layer: scaling laws do not describe layers without a block"),
        ({"space": RUN["space"] | {"layer": RUN["space"]["layer"] | {"ffn": ["swiglu", "swiglu-g2"]}}},
         "space.layer.ffn: scaling laws do not describe grouped feed-forwards"),
    ],
)  # fmt: skip
def test_what_a_law_cannot_do_is_refused_with_its_field(change, message) -> None:
    with pytest.raises(SpecError, match=message):
        run_spec({**RUN, **change}, file="run.yaml")
