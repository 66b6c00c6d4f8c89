"""Worker processes: results and failures, deaths, hangs, workers that cannot start, and a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chipwise.core.workers import Event, WorkerPool, ask_once
from chipwise.errors import WorkerError

PROGRAM = """
import os, signal, sys, time
from chipwise.errors import DataError
from chipwise.core.workers import serve

setup = {}

def run(job, report):
    report(pid=os.getpid())
    print("libraries print what they like")
    match job["do"]:
        case "double": return 2 * job["value"]
        case "setup": return setup
        case "refuse": raise DataError("line 3: no label")
        case "fail": raise ValueError("no zero")
        case "nonsense": return {1, 2}
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "exit": print("last line", file=sys.stderr); os._exit(7)
        case "hang": time.sleep(3600)

serve(run, start=setup.update)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "worker.py"
    script.write_text(PROGRAM)
    return [sys.executable, str(script)]


def ends(events: list[Event]) -> dict[int, Event]:
    return {event.job: event for event in events if event.kind != "progress"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_results_progress_and_setup(command: list[str]) -> None:
    with WorkerPool(command, 2, setup={"key": "value"}) as pool:
        numbers = [pool.submit({"do": "double", "value": value}) for value in range(5)]
        asked = pool.submit({"do": "setup"})
        events = list(pool.events())
        assert pool.unfinished == 0
    assert [ends(events)[number].data for number in numbers] == [0, 2, 4, 6, 8]
    assert ends(events)[asked].data == {"key": "value"}
    assert len({event.data["pid"] for event in events if event.kind == "progress"}) <= 2


@pytest.mark.parametrize(
    ("do", "kind", "message", "died"),
    [
        ("refuse", "DataError", "line 3: no label", False),
        ("fail", "ValueError", "ValueError: no zero", False),
        ("nonsense", "TypeError", "not JSON serializable", False),
        ("die", "WorkerError", "the test worker died (killed by signal 9, SIGKILL; out of memory?)", True),
        ("exit", "WorkerError", "the test worker died (exit code 7)", True),
    ],
)
def test_a_fault_of_one_job_spares_the_next(command: list[str], do: str, kind: str, message: str, died: bool) -> None:
    with WorkerPool(command, 1, name="test worker") as pool:
        faulty, good = pool.submit({"do": do}), pool.submit({"do": "double", "value": 4})
        ended = ends(list(pool.events()))
    assert (ended[faulty].kind, ended[faulty].data["kind"], ended[faulty].died) == ("failed", kind, died)
    assert message in ended[faulty].data["message"]
    assert ended[good].data == 8


def test_a_worker_that_hangs_is_ended_and_its_successor_works(command: list[str]) -> None:
    """An hour passes as soon as the job has begun to hang."""
    passed = [0.0]
    with WorkerPool(command, 1, silence_s=60.0, clock=lambda: passed[0]) as pool:
        hanging = pool.submit({"do": "hang"})
        (progress,) = pool.poll(300.0)
        passed[0] = 3600.0
        (event,) = pool.poll(300.0)
        assert (event.job, event.kind, event.died) == (hanging, "failed", True)
        assert "sent no message for 60 s" in event.data["message"]
        assert not alive(progress.data["pid"])
        after = pool.submit({"do": "double", "value": 1})
        assert ends(list(pool.events()))[after].data == 2


def test_a_worker_that_dies_between_two_jobs_costs_none(command: list[str]) -> None:
    with WorkerPool(command, 1) as pool:
        pool.submit({"do": "double", "value": 1})
        assert [event.kind for event in pool.events()] == ["progress", "result"]
        worker = pool._workers[0].process
        worker.kill()
        worker.wait()
        after = pool.submit({"do": "double", "value": 2})
        assert ends(list(pool.events()))[after].data == 4


def test_what_does_not_happen_is_not_waited_for(command: list[str]) -> None:
    with WorkerPool(command, 1) as pool:
        assert pool.poll(0.0) == []
        pool.submit({"do": "hang"})
        assert [event.kind for event in pool.poll(0.5)] in ([], ["progress"])


def test_closing_ends_workers_in_the_middle_of_a_job(command: list[str]) -> None:
    with WorkerPool(command, 1) as pool:
        pool.submit({"do": "hang"})
        pid = next(pool.events()).data["pid"]
    assert not alive(pid)
    with pytest.raises(WorkerError, match="closed"):
        pool.submit({"do": "double", "value": 1})


@pytest.mark.parametrize("program", ["import sys; sys.exit('no torch here')", "import does_not_exist"])
def test_workers_that_cannot_start_are_an_error_with_their_last_lines(program: str) -> None:
    with WorkerPool([sys.executable, "-c", program], 1, name="test worker") as pool:
        pool.submit({"do": "double", "value": 1})
        with pytest.raises(
            WorkerError, match=r"test workers do not start \(exit code 1\): .*(no torch|does_not_exist)"
        ):
            list(pool.events())


def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(WorkerError, match="cannot be started"):
        WorkerPool(["/no/such/program"], 1)
    with pytest.raises(WorkerError, match="cannot be started"):
        ask_once(["/no/such/program"], {}, timeout_s=1.0)


PARENT = """
import signal
import sys
from chipwise.core.workers import WorkerPool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
pool = WorkerPool(sys.argv[1:], 1)
pool.submit({"do": "hang"})
for event in pool.events():
    print(event.data["pid"], flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_parent(command: list[str], how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())  # in the middle of a job
    assert alive(pid)
    os.kill(parent.pid, how)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(pid)


ONCE = """
import json, os, signal, sys, time
request = json.load(sys.stdin)
match request["do"]:
    case "answer": print(json.dumps({"twice": 2 * request["value"]}))
    case "mumble": print("I am no JSON")
    case "die": os.kill(os.getpid(), signal.SIGKILL)
    case "fail": sys.exit("it broke")
    case "hang": time.sleep(3600)
"""


def test_one_request_gets_one_reply() -> None:
    command = [sys.executable, "-c", ONCE]
    assert ask_once(command, {"do": "answer", "value": 4}, timeout_s=60.0) == {"twice": 8}
    for do, message in (
        ("mumble", "unreadable answer: 'I am no JSON"),
        ("die", "killed by signal 9"),
        ("fail", r"exit code 1\): it broke"),
    ):
        with pytest.raises(WorkerError, match=message):
            ask_once(command, {"do": do}, timeout_s=60.0)
    with pytest.raises(WorkerError, match=r"no answer within 0\.5 s; the test worker was ended"):
        ask_once(command, {"do": "hang"}, timeout_s=0.5, name="test worker")
