"""Files of released versions open with today's code and give the same answers."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from chipwise import api
from chipwise.core.files import read_json
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import run_spec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.errors import StudyError
from chipwise.model.space.search_space import SearchSpace

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


def test_a_finished_run_of_0_1_0_is_resumed_to_the_same_answer(run_0_1_0) -> None:
    """Nothing is trained or measured again; the text is not even read."""
    spec = run_spec(read_json(run_0_1_0 / "spec.json")["spec"], file="spec.json")
    record = api.search(spec, out=run_0_1_0, resume=True)
    assert (record.status, len(record.trials)) == ("finished", TRIALS)
    winner = record.trial(record.winner)
    assert (winner.quantised_loss, winner.measured["tpot_p50"]) == pytest.approx(WINNER, rel=1e-12)
    assert winner.test_loss is None  # that version kept no test text, and none is made up
    assert "exported" in (run_0_1_0 / "card.md").read_text()


def test_an_unfinished_run_without_a_test_text_is_refused_in_one_sentence(run_0_1_0, tmp_path, monkeypatch) -> None:
    """The tokens that version stored hold no test part: going on would report a number that selected the winner."""
    journal = run_0_1_0 / "study.journal"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(line for line in lines if '"winner"' not in line) + "\n")
    (run_0_1_0 / "corpus").mkdir()
    (run_0_1_0 / "corpus" / "corpus.digest").write_text("0123456789abcdef\n")  # of the text as it was divided then
    source = tmp_path / "src" / "chipwise" / "core"
    source.mkdir(parents=True)
    (source / "a.py").write_text("\n\n".join(f"x{i} = {i}  # and {i * i} is its square" for i in range(3000)))
    (tmp_path / "README.md").write_text("A text.")
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = run_spec(read_json(run_0_1_0 / "spec.json")["spec"], file="spec.json")
    with pytest.raises(StudyError, match=r"or of this text without a test part .*; start again with --restart"):
        api.search(spec, out=run_0_1_0, resume=True)
    assert api.report(run_0_1_0).status == "partial"  # and its trials can still be looked at
