"""Where a run's trials are kept, and what a folder refuses."""

from __future__ import annotations

import dataclasses

import pytest

from chipwise.core.files import read_json
from chipwise.design.run.folder import RunFolder, holds_run
from chipwise.design.run.spec import run_spec
from chipwise.errors import Infeasible, SpecError, StudyError
from chipwise.model.arch.arch import uniform

SPEC = run_spec(
    {
        "name": "toy",
        "workload": {},
        "space": {
            "d_model": [32],
            "depth": [1],
            "vocab_size": [512],
            "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [64]},
        },
        "data": {},
    },
    file="toy.yaml",
)


def test_trials_are_in_the_folder_unless_named_elsewhere(tmp_path) -> None:
    with RunFolder(tmp_path / "a", SPEC) as folder:
        assert folder.where == tmp_path / "a" / "study.journal"
        assert folder.study_name == "toy"
    url = f"sqlite:///{tmp_path / 's.db'}"
    with RunFolder(tmp_path / "b", SPEC, storage=url) as folder:
        assert folder.where == url
        assert folder.study_name == f"toy-{SPEC.identity}"
    with RunFolder(tmp_path / "b", SPEC, resume=True) as folder:
        assert folder.where == url  # a resumed run goes on where it was kept


def test_a_folder_whose_trials_are_elsewhere_is_begun_all_the_same(tmp_path) -> None:
    with RunFolder(tmp_path / "a", SPEC, storage=str(tmp_path / "shared.journal")):
        pass
    with pytest.raises(StudyError, match="--resume"):
        RunFolder(tmp_path / "a", SPEC)
    with RunFolder(tmp_path / "a", SPEC, restart=True) as folder:
        assert folder.storage is None
    assert len(list(tmp_path.glob("a-*"))) == 1


def test_a_winner_under_former_limits_is_put_aside_where_nothing_keeps_the_new_ones(tmp_path) -> None:
    def stopped_by(error: BaseException) -> None:
        with RunFolder(tmp_path / "a", SPEC) as folder:
            folder.winner.mkdir(exist_ok=True)
            (folder.winner / "chipwise.json").write_text("{}")
            raise error

    for error, left in ((KeyboardInterrupt(), 1), (Infeasible("nothing keeps them"), 0)):
        with pytest.raises(type(error)):
            stopped_by(error)
        assert (tmp_path / "a" / "winner").exists() == bool(left)
        assert len(list((tmp_path / "a").glob("winner-*/chipwise.json"))) == 1 - left


def test_a_password_is_never_written_and_asked_for_again(tmp_path) -> None:
    url = "postgresql://me:secret@host/x"
    with RunFolder(tmp_path / "a", SPEC, storage=url) as folder:
        assert folder.where == url
    assert read_json(tmp_path / "a" / "spec.json")["storage"] == "postgresql://me:***@host/x"
    with pytest.raises(StudyError, match="give --storage again, with the password"):
        RunFolder(tmp_path / "a", SPEC, resume=True)
    with RunFolder(tmp_path / "a", SPEC, resume=True, storage=url) as folder:
        assert folder.where == url


def test_trials_of_a_search_that_ran_in_another_folder_are_refused(tmp_path) -> None:
    shared = str(tmp_path / "shared.journal")
    with RunFolder(tmp_path / "a", SPEC, storage=shared) as first:
        first.check_trials_belong_to_run(0)
    with RunFolder(tmp_path / "a", SPEC, resume=True) as again:
        again.check_trials_belong_to_run(5)
    with RunFolder(tmp_path / "b", SPEC, storage=shared) as other, pytest.raises(StudyError, match="holds 5 trials"):
        other.check_trials_belong_to_run(5)


def test_a_run_that_is_at_work_is_not_put_aside(tmp_path) -> None:
    with RunFolder(tmp_path / "a", SPEC) as folder:
        folder.study.touch()
        with pytest.raises(StudyError, match="a search is running"):
            RunFolder(tmp_path / "a", SPEC, restart=True)
        assert folder.study.exists()
    with RunFolder(tmp_path / "a", SPEC, restart=True) as folder:
        assert not folder.study.exists()
        with pytest.raises(StudyError, match="a search is running"):
            RunFolder(tmp_path / "a", SPEC, resume=True)
    (aside,) = tmp_path.glob("a-*")
    assert (aside / "study.journal").exists()


def test_every_file_has_its_place(tmp_path) -> None:
    arch = uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64)
    with RunFolder(tmp_path, SPEC) as folder:
        assert folder.training(arch) == tmp_path / "trainings" / arch.digest
        assert folder.trial(7) == tmp_path / "trials" / "7"
        found = (folder.profile, folder.calibrating, folder.spent, folder.corpus, folder.winner, folder.record)
    names = ("profile.json", "profile-partial.jsonl", "spent.json", "corpus", "winner", "record.json")
    assert found == tuple(tmp_path / name for name in names)


def test_a_folder_is_resumed_where_something_was_begun_and_its_store_is_not_changed(tmp_path) -> None:
    with RunFolder(tmp_path / "a", SPEC, resume=True) as folder:
        assert not folder.resumed  # there was nothing
        folder.study.touch()
    with RunFolder(tmp_path / "a", SPEC, resume=True) as folder:
        assert folder.resumed
    with pytest.raises(StudyError, match="resume without --storage"):
        RunFolder(tmp_path / "a", SPEC, resume=True, storage="sqlite:///x.db")
    with pytest.raises(StudyError, match="already holds a run; go on with --resume"):
        RunFolder(tmp_path / "a", SPEC)
    other = dataclasses.replace(SPEC, profiling="measured")
    with pytest.raises(
        SpecError, match=r"^profiling: was 'hybrid' and is now 'measured'; the run in .*a can be resumed"
    ):
        RunFolder(tmp_path / "a", other, resume=True)
    with RunFolder(tmp_path / "a", other, restart=True) as folder:  # which put the other aside
        assert not folder.resumed
    assert (holds_run(tmp_path / "a"), holds_run(tmp_path / "b")) == (False, False)
    with RunFolder(tmp_path / "c", SPEC) as folder:
        (folder.path / "about.json").touch()
        assert holds_run(tmp_path / "c")


def test_a_search_that_could_not_start_takes_back_what_it_wrote_and_no_more(tmp_path) -> None:
    with RunFolder(tmp_path / "a", SPEC) as folder:
        folder.study.touch()
        folder.withdraw()
    assert not holds_run(tmp_path / "a")
    assert not (tmp_path / "a" / "spec.json").exists()
    with RunFolder(tmp_path / "a", SPEC) as folder:
        folder.study.touch()
    with RunFolder(tmp_path / "a", SPEC, resume=True) as folder:
        folder.withdraw()  # there was a run before
    assert holds_run(tmp_path / "a")
    with RunFolder(tmp_path / "b", SPEC, storage=str(tmp_path / "shared.journal")) as folder:
        folder.withdraw()  # others may be at work on these trials
    assert holds_run(tmp_path / "b")
