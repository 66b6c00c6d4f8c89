import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from chipwise.design.strategies.storage import with_retries
from chipwise.design.strategies.study import Study
from chipwise.errors import DiskFull, InputError, StorageError, StudyError

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
    assert opened(tmp_path / "s").trials()[2].notes["more"] == 1


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_study import opened
from chipwise.errors import StorageError
path = Path(sys.argv[1])
study = opened(path)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, resource.RLIM_INFINITY))  # room for half a line
try:
    study.note(2, more="x" * 1000)
except StorageError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
study.note(2, again=1)  # the same process goes on once there is room
print("kept:", study.trials()[2].notes.get("again"))
"""


def test_a_disk_that_fills_up_while_writing_loses_nothing_told_before(tmp_path) -> None:
    path = tmp_path / "s"
    before = told(path).trials()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(Path(__file__).parent)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search("refused: .*disk is full.*--resume", done.stdout)
    assert "kept: 1" in done.stdout
    now = opened(path).trials()
    assert [trial.values for trial in now] == [trial.values for trial in before]
    assert "more" not in now[2].notes
    assert now[2].notes["again"] == 1
    assert not (tmp_path / "s.torn").exists()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_study import opened
study = opened(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    number = study.start({"d_model": "64"}, {"row": [0], "load": "x" * 5_000})
    study.finish(number, (float(number), 1.0))
    print(number, flush=True)
"""


def test_writers_killed_in_the_middle_lose_nothing_that_they_said_was_told(tmp_path) -> None:
    path = tmp_path / "s"
    opened(path)
    told_of: set[int] = set()
    for turn in range(4):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout.readline().strip() == "ready"
        told_of |= {int(writer.stdout.readline()) for writer in writers for _ in range(1 + 3 * turn)}
        for writer in writers:
            writer.kill()
            told_of |= {int(line) for line in writer.stdout.read().splitlines() if line.strip().isdigit()}
            writer.wait()
    trials = {trial.number: trial for trial in opened(path).trials()}
    assert told_of
    assert all(trials[number].values == (float(number), 1.0) for number in told_of)


def test_a_trial_ends_once(tmp_path) -> None:
    study = opened(tmp_path / "s")
    number = study.start({"d_model": "64"}, {})
    assert study.finish(number, (1.0, 2.0))
    assert study.finish(number, (1.0, 2.0))  # told again after a cut connection
    assert not study.finish(number, (1.0, 3.0))
    assert not study.fail(number, "late")
    assert study.trial(number).values == (1.0, 2.0)


@pytest.mark.parametrize("where", ["journal", "sqlite"])
def test_what_is_found_out_after_the_end_of_a_trial_is_kept(tmp_path, where) -> None:
    """A kit measures trials of a finished search: both notes of the first are there, beside what was noted before."""
    path = tmp_path / "s" if where == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    study = told(path)
    study.note(0, measured={"tpot_p50": 0.1})
    study.note(0, within=True)
    study.note(1, measured=None)
    again = opened(path)
    assert again.trial(0).notes == {
        "row": [0, 0],
        "rungs": [{"rung": 0}],
        "measured": {"tpot_p50": 0.1},
        "within": True,
    }
    assert [trial.notes.get("within") for trial in again.trials()] == [True, None, None]
    assert again.trial(0).values == (1.5, 0.25)
    assert set(again.memory) == {"identity", "spent"}


@pytest.mark.parametrize("where", ["sqlite", "memory"])
def test_other_stores_keep_the_same(tmp_path, where) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}" if where == "sqlite" else None
    study = told(url)
    again = opened(url) if url else study
    assert [(trial.state, trial.values) for trial in again.trials()] == [
        ("complete", (1.5, 0.25)),
        ("failed", ()),
        ("running", ()),
    ]
    assert again.trials()[0].notes["rungs"] == [{"rung": 0}]
    assert again.memory["spent"] == {"training": 3.5}


def test_a_store_that_is_none_is_refused_and_no_password_is_shown() -> None:
    for kind in ("ftp", "mysql"):
        with pytest.raises(InputError, match=f"{kind!r} is not supported; give postgresql") as error:
            opened(f"{kind}://me:secret@host/x")
        assert "secret" not in str(error.value)


def test_a_database_file_in_a_folder_that_does_not_exist_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; create it"):
        opened(f"sqlite:///{tmp_path}/nowhere/x.db")


@pytest.mark.parametrize(
    "line", [b'{"op_code": 99}', b"[1]", b"7", b'{"op_code": "x"}', b'{"op_code": 4}', b"[" * 9999]
)
def test_a_line_that_is_no_record_is_named(tmp_path, line) -> None:
    (tmp_path / "s").write_bytes(line + b"\n")
    with pytest.raises(
        StudyError, match=r"s: (line 1 is|the study cannot be read).*start a new run with --restart"
    ) as caught:
        opened(tmp_path / "s")
    assert "Error" not in str(caught.value)


def test_a_journal_that_is_no_file_is_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StudyError, match=f"{name}: this is not a file"):
            opened(tmp_path / name)


def test_a_file_that_is_no_database_is_refused(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("no database, whatever its address says" * 100)
    with pytest.raises(StorageError, match=r"notes\.txt: cannot be used as a database: .*not a database"):
        opened(f"sqlite:///{tmp_path / 'notes.txt'}")


def test_a_database_out_of_reach_is_asked_for_a_while_then_named() -> None:
    class OperationalError(Exception):
        pass

    waited: list[float] = []

    def refuse():
        raise OperationalError("connection refused")

    with pytest.raises(StorageError, match=r"me:\*\*\*@host.*could not be reached for 5 s \(connection refused\)"):
        with_retries(
            refuse, "postgresql://me:secret@host/x", patience_s=5.0, clock=lambda: sum(waited), sleep=waited.append
        )
    assert sum(waited) > 5.0
    answers = iter([OperationalError("cut"), OperationalError("cut"), None])

    def recover():
        error = next(answers)
        if error:
            raise error
        return 7

    assert with_retries(recover, "x", sleep=lambda pause: None) == 7


def test_tables_that_another_search_is_making_are_waited_for_however_long_the_first_attempt_took() -> None:
    """Twenty seconds, then the tables exist twice; the patience of five seconds begins with that error."""
    now = 0.0
    attempts = 0

    class IntegrityError(Exception):
        """Stands for the database's."""

    def connect() -> str:
        nonlocal now, attempts
        attempts += 1
        if attempts == 1:
            now += 20.0
            raise IntegrityError("duplicate key")
        return "connected"

    found = with_retries(
        connect, "x", patience_s=5.0, also=("IntegrityError",), clock=lambda: now, sleep=lambda pause: None
    )
    assert (found, attempts) == ("connected", 2)


def test_a_database_whose_disk_is_full_is_said_at_once(tmp_path) -> None:
    """Five pages of SQLite's are all the room that there is."""
    connection = sqlite3.connect(tmp_path / "full.db")
    connection.execute("pragma max_page_count = 5")
    connection.execute("create table t (x)")

    def fill():
        while True:
            connection.execute("insert into t values (?)", ("y" * 3_000,))
            connection.commit()

    with pytest.raises(DiskFull, match=r"full\.db: the disk is full; .* go on with --resume"):
        with_retries(fill, f"sqlite:///{tmp_path}/full.db", sleep=lambda pause: pytest.fail("it waited"))
    assert connection.execute("select count(*) from t").fetchone()[0] >= 1


def test_ten_thousand_trials_are_listed_and_added_to(tmp_path) -> None:
    path = tmp_path / "s"
    study = opened(path)
    study.finish(study.start({"d_model": "64"}, {"row": [0]}), (1.0, 1.0))
    create, end = path.read_bytes().splitlines(keepends=True)[-2:]
    with path.open("ab") as stream:
        for number in range(1, 10_000):
            stream.write(create)
            stream.write(re.sub(rb'"trial_id":0', b'"trial_id":%d' % number, end))
    study = opened(path)
    assert len(study.trials()) == 10_000
    study.note(study.start({"d_model": "64"}, {}), more=1)
    assert len(opened(path).trials()) == 10_001
