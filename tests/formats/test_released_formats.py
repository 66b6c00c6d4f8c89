"""What released versions wrote opens with today's code, and says the same."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from chipwise import api
from chipwise.core.files import read_json
from chipwise.optim.study import Study
from chipwise.run.folder import RunFolder
from chipwise.run.spec import run_spec
from chipwise.run.trials import Trials, choice_labels
from chipwise.space import SearchSpace

STORED = Path(__file__).parent
TRIALS, COMPLETE = 17, 17  # what the first release wrote
WINNER = (2.218862570195333, 1.331999919784721e-05)


@pytest.fixture
def run_0_1_0(tmp_path) -> Path:
    folder = tmp_path / "smoke"
    shutil.copytree(STORED / "run-0.1.0", folder)
    packed = folder / "study.journal.gz"
    (folder / "study.journal").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return folder


def test_a_run_of_0_1_0_has_the_identity_that_it_was_stored_with(run_0_1_0) -> None:
    held = read_json(run_0_1_0 / "spec.json")
    spec = run_spec(held["spec"], file="spec.json")
    assert spec.identity == held["identity"]
    with RunFolder(run_0_1_0, spec, resume=True) as folder:
        assert folder.study.exists()


def test_every_trial_of_0_1_0_is_there(run_0_1_0) -> None:
    spec = run_spec(read_json(run_0_1_0 / "spec.json")["spec"], file="spec.json")
    space = SearchSpace(spec.space)
    study = Study(
        run_0_1_0 / "study.journal",
        name=spec.name,
        directions=[goal.direction for goal in spec.goals],
        identity=spec.identity,
        choices=choice_labels(space),
    )
    items = Trials(study, spec, space).all()
    assert [item.number for item in items] == list(range(TRIALS))
    assert sum(item.trial.state == "complete" for item in items) == COMPLETE
    for item in items:
        if item.row is not None:
            assert space.choices(item.row) == item.trial.notes["choices"]
    winner = items[study.memory["winner"]]
    assert winner.trial.values == pytest.approx(WINNER, rel=1e-12)
    number = study.start({}, {"more": 1})  # and it goes on
    assert study.trial(number).notes == {"more": 1}


def test_the_report_of_a_run_of_0_1_0_is_drawn_again(run_0_1_0) -> None:
    record = api.report(run_0_1_0)
    assert record.status == "finished"
    assert len(record.trials) == TRIALS
    assert (run_0_1_0 / "report.html").stat().st_size > 100_000
