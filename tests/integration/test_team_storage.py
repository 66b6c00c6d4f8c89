"""A study in PostgreSQL that two searches share while the server is stopped and started under them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

OPTIM_TESTS = Path(__file__).parents[1] / "unit" / "design" / "strategies"
sys.path.insert(0, str(OPTIM_TESTS))

import evaluations  # noqa: E402

from chipwise.design.strategies.optimise import optimise, result_of, study_of  # noqa: E402

PROBLEM = evaluations.toy_problem()
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Server:
    """A separate PostgreSQL server with its own folder and port."""

    def __init__(self, folder: Path) -> None:
        self.data, self.bin = folder / "data", BINARIES[-1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.run("initdb", "-U", "postgres", "-A", "trust", "-D", str(self.data))
        self.start()

    def run(self, name: str, *arguments: str) -> None:
        as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        done = subprocess.run(
            [*as_user, str(self.bin / name), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=300,
            cwd="/",
        )
        assert done.returncode == 0, f"{name} failed"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        log = str(self.data.parent / "log")
        self.run("pg_ctl", "-D", str(self.data), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self.data), "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not BINARIES:
        pytest.skip("needs PostgreSQL (Debian's package postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs psycopg: pip install 'chipwise[postgresql]'")
    folder = Path(tempfile.mkdtemp(prefix="chipwise-postgresql-"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    running = Server(folder)
    yield running
    running.stop()
    shutil.rmtree(folder, ignore_errors=True)


SEARCH = """
import sys
sys.path.insert(0, sys.argv[2])
import evaluations
from chipwise.design.strategies.optimise import optimise
optimise(evaluations.toy_problem(), getattr(evaluations, sys.argv[4]), evaluations=40, strategy="evolution", workers=2,
         storage=sys.argv[1], name=sys.argv[3], on_progress=lambda done, wanted: print(done, flush=True))
"""


def begin(url: str, name: str, evaluation: str = "sleeping") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SEARCH, url, str(OPTIM_TESTS), name, evaluation]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stored(url: str, name: str):
    """The study, opened read-only."""
    return study_of(PROBLEM, url, name=name)


@pytest.mark.slow
def test_two_searches_share_a_database_that_goes_away_for_a_while(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MEETING", str(tmp_path))
    searches = [begin(server.url, "shared", "in_company") for _ in range(2)]
    for search in searches:
        assert search.stdout.readline(), search.stderr.read()
    server.stop()  # as a crash does: every connection is cut
    (tmp_path / "go").touch()  # what the workers find next cannot be told
    time.sleep(1.0)
    server.start()
    for search in searches:
        _, complaint = search.communicate(timeout=600)
        assert search.returncode == 0, complaint
    study = stored(server.url, "shared")
    done = [trial for trial in study.trials() if trial.state == "complete"]
    assert len({trial.notes["owner"] for trial in done}) == 2
    assert 40 <= len(done) <= 44
    assert not [trial for trial in study.trials() if trial.state == "running"]
    assert len(result_of(PROBLEM, study).front) >= 2


@pytest.mark.slow
def test_a_search_that_is_killed_is_gone_on_with_from_the_database(server) -> None:
    search = begin(server.url, "killed")
    for _ in range(5):
        assert search.stdout.readline()
    search.kill()
    search.wait()
    before = {tuple(t.notes["row"]) for t in stored(server.url, "killed").trials() if t.state == "complete"}
    assert len(before) >= 5
    done = optimise(PROBLEM, evaluations.toy, evaluations=20, strategy="evolution", storage=server.url, name="killed")
    assert len(done.rows) == 20
    assert before <= {tuple(row) for row in done.rows.tolist()}


@pytest.mark.slow
def test_a_database_that_is_not_there_is_named_without_its_password(monkeypatch) -> None:
    from chipwise.design.strategies import storage
    from chipwise.errors import StorageError

    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs psycopg: pip install 'chipwise[postgresql]'")
    monkeypatch.setattr(storage, "PATIENCE_S", 0.2)
    with pytest.raises(StorageError, match=r"me:\*\*\*@127\.0\.0\.1:1/x: the database could not be reached"):
        optimise(PROBLEM, evaluations.toy, evaluations=2, storage="postgresql://me:secret@127.0.0.1:1/x")
