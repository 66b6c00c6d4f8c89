"""Where a search in Python shows its progress: in a terminal and in a notebook, and nowhere else."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from chipwise.design.run.progress import WIDTH, Status, line_of, seen, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ZMQInteractiveShell:
    """The kind of shell that a notebook has."""


def notebook(shell):
    return SimpleNamespace(get_ipython=lambda: shell)


@pytest.mark.parametrize(
    ("terminal", "shell", "where"),
    [(False, None, None), (True, None, "stderr"), (False, ZMQInteractiveShell(), "stdout"), (False, object(), None)],
)
def test_it_is_shown_where_somebody_sees_it(terminal, shell, where, monkeypatch) -> None:
    streams = {"stdout": io.StringIO(), "stderr": Terminal() if terminal else io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setitem(sys.modules, "IPython", notebook(shell))
    observer = seen()
    observer(Status(phase="screening", budget=100.0))
    assert (observer is silent) == (where is None)
    assert [name for name, stream in streams.items() if "screening" in stream.getvalue()] == [where] * bool(where)


def test_one_line_is_drawn_again_and_gone_at_the_end() -> None:
    stream = io.StringIO()
    observer = seen(stream)
    status = Status(phase="calibrating", detail="nodes (17 %)" * 20, budget=100.0, spent=12.0)
    observer(status)
    observer(status)  # at once: nothing new
    assert stream.getvalue() == "\r" + line_of(status)[:WIDTH]
    status.phase, status.detail, status.priced, status.best_loss = "first trainings", "", 1000, 1.25
    observer(status)
    last = stream.getvalue().split("\r")[-1]
    assert (
        last.rstrip() == "[   12/100 CPU-s] first trainings: 1,000 priced, 0 trained, 0 measured, best 1.250 bits/byte"
    )
    assert len(last) == WIDTH
    status.done = True
    observer(status)
    assert stream.getvalue().endswith("\r" + " " * WIDTH + "\r")
