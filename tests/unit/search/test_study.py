import errno

import pytest

from chipwise.core.errors import StorageError, StudyError
from chipwise.search.study import Study

CHOICES = {"d_model": ("64", "128"), "weights": ("fp32", "int8")}


def opened(path, identity="one"):
    return Study(path, name="test", directions=["minimize", "minimize"], identity=identity, choices=CHOICES)


def told(path):
    """A study with one finished, one failed and one running trial."""
    study = opened(path)
    first = study.start({"d_model": "64", "weights": "fp32"}, {"row": [0, 0]})
    study.note(first, rungs=[{"rung": 0}])
    study.finish(first, (1.5, 0.25))
    study.fail(study.start({"d_model": "128"}, {"row": [1, 0]}), "diverged")
    study.start({"d_model": "128"}, {"row": [1, 1]})
    study.remember(spent={"training": 3.5})
    return study


def test_everything_told_is_there_after_opening_again(tmp_path) -> None:
    told(tmp_path / "s")
    again = opened(tmp_path / "s")
    states = [(trial.state, trial.values) for trial in again.trials()]
    assert states == [("complete", (1.5, 0.25)), ("failed", ()), ("running", ())]
    assert again.trials()[0].notes["rungs"] == [{"rung": 0}]
    assert again.trials()[1].notes["reason"] == "diverged"
    assert again.memory["spent"] == {"training": 3.5}


def test_a_torn_last_line_is_cut_and_the_rest_kept(tmp_path) -> None:
    path = tmp_path / "s"
    before = told(path).trials()
    with path.open("ab") as stream:
        stream.write(b'{"op_code":8,"worker_id":"x","tri')
    study = opened(path)
    assert study.trials() == before
    study.note(2, more=1)  # and what is told next is read again
    assert opened(path).trials()[2].notes["more"] == 1


def test_every_prefix_of_the_journal_opens(tmp_path) -> None:
    told(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    for length in range(0, len(data), 97):
        path = tmp_path / f"s{length}"
        path.write_bytes(data[:length])
        assert len(opened(path).trials()) <= 3


def test_a_broken_line_in_the_middle_is_named(tmp_path) -> None:
    told(tmp_path / "s")
    lines = (tmp_path / "s").read_bytes().splitlines(keepends=True)
    (tmp_path / "s").write_bytes(b"".join([*lines[:2], b"garbage\n", *lines[3:]]))
    with pytest.raises(StudyError, match="line 3"):
        opened(tmp_path / "s")


def test_a_study_of_another_spec_is_refused(tmp_path) -> None:
    told(tmp_path / "s")
    with pytest.raises(StudyError, match="another spec"):
        opened(tmp_path / "s", identity="two")


def test_a_lock_left_by_a_killed_process_does_not_hold_anyone_up(tmp_path) -> None:
    told(tmp_path / "s")
    (tmp_path / "s.lock").touch()
    opened(tmp_path / "s").note(2, more=1)


def test_a_disk_that_fills_up_while_writing_loses_nothing_told_before(tmp_path, monkeypatch) -> None:
    from optuna.storages.journal import JournalFileBackend

    path = tmp_path / "s"
    study = told(path)
    before = study.trials()

    def full(self, logs):
        with path.open("ab") as stream:
            stream.write(b'{"op_code":')  # what still fitted
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(JournalFileBackend, "append_logs", full)
        with pytest.raises(StorageError, match=r"disk is full.*--resume"):
            study.note(2, more=1)
    assert opened(path).trials() == before
