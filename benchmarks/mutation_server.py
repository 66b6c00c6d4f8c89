"""Runs tests in forks of a process that has already imported the slow packages; used by `mutation.py`.

One request per line on standard input, one answer per line on standard output, both JSON. Each request runs pytest in a
fork, so chipwise is imported afresh from the sources on PYTHONPATH; packages that it builds on are imported once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

SLOW = (
    "hypothesis",
    "numpy",
    "scipy.stats",
    "scipy.optimize",
    "torch",
    "onnx",
    "onnxruntime",
    "optuna",
    "transformers",
)
TRACER = '''
import os, sys, threading

test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]

def start():
    """Writes (test, file, function) of each first call of a function of the sources, also in child processes."""
    source, seen = os.environ["MUTATION_SOURCE"], set()
    out = os.open(os.environ["MUTATION_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    def note(frame, event, argument):
        code = frame.f_code
        if code.co_filename.startswith(source):
            call = (test, code.co_filename, code.co_qualname)
            if call not in seen:
                seen.add(call)
                os.write(out, "\\t".join((test, code.co_filename[len(source) + 1:], code.co_qualname + "\\n")).encode())
    threading.settrace(note)
    sys.settrace(note)

if "MUTATION_CALLS" in os.environ:
    start()
'''


class Plugin:
    """Chooses and orders the tests, and notes how long each took and which failed."""

    def __init__(self, chosen: list[str]) -> None:
        self.rank = {test: i for i, test in enumerate(chosen)}
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Tests known to call the changed function, quickest first; all tests if none is known."""
        if self.rank:
            items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Attributes the calls from now on to this test."""
        if tracer := sys.modules.get("sitecustomize"):
            tracer.test = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Seconds of set-up, call and tear-down together."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Records a file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)


def _run(request: dict[str, Any], answer: Path) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"] + 5))
    os.environ.update(request["environment"])
    if "MUTATION_CALLS" in os.environ:
        importlib.import_module("sitecustomize").start()
    plugin = Plugin(request["chosen"])
    stop = ["-x"] if request["stop"] else []
    code = pytest.main(["-q", "--tb=no", "-p", "no:cacheprovider", *stop, *request["files"]], plugins=[plugin])
    sys.settrace(None)
    answer.write_text(json.dumps({"code": int(code), "failed": plugin.failed, "seconds": plugin.seconds}))


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Exit code of the tests (None at the time limit), those that failed and the seconds of each."""
    with tempfile.TemporaryDirectory(prefix="mutation-answer") as folder:
        answer = Path(folder, "answer.json")
        child = os.fork()
        if not child:
            try:
                _run(request, answer)
            finally:
                os._exit(0)
        end = time.monotonic() + request["wall_s"]
        status = 0
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what the tests left running
        status = ended[1] if ended[0] else os.waitpid(child, 0)[1]
        if answer.exists() and not os.WIFSIGNALED(status):
            return dict(json.loads(answer.read_text()))
        late = not ended[0] or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL))
        return {"code": None if late else 3, "failed": [] if late else ["the process ended"], "seconds": {}}


def main() -> None:
    """Answers requests until the input ends."""
    for name in SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "chipwise" for name in sys.modules)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
