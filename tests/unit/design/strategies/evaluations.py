"""Evaluations that worker processes can import: good ones, slow ones, and those that die, hang or answer nonsense."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from chipwise.api.testing.strategy_suite import toy_objectives, toy_problem, toy_violations
from chipwise.design.strategies.executors import Outcome

__all__ = ["toy_objectives", "toy_problem", "toy_violations"]


def toy(row):
    """Loss alone: the cost and the limit are free."""
    return toy_objectives(row[None])[0, :1]


def scaled(factor, row):
    return factor * toy(row)


def whole(row):
    return Outcome(objectives=toy_objectives(row[None])[0], violations=toy_violations(row[None])[0])


def sleeping(row):
    time.sleep(0.1)
    return toy(row)


def in_company(row):
    """A worker's first waits until two searches have begun one, its others until the test says ``go``."""
    place = Path(os.environ["MEETING"])
    (place / f"search {os.getppid()}").touch()
    mine = place / f"worker {os.getpid()}"
    while len([*place.glob("search *")]) < 2 or (mine.exists() and not (place / "go").exists()):
        time.sleep(0.01)
    mine.touch()
    return sleeping(row)


def dies_once(row):
    """The first to be evaluated is killed, once."""
    marker = Path(os.environ["MARKER"])
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return toy(row)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def dies_always(row):
    """Rows that begin with 0 kill whoever tries them."""
    if row[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return toy(row)


def hangs_once(row):
    marker = Path(os.environ["MARKER"])
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return toy(row)
    time.sleep(3600)
    return None


def nonsense(row):
    if row[0] == 0:
        raise ValueError("no zero")
    if row[0] == 1:
        return [np.nan]
    if row[0] == 2:
        return [1.0, 2.0, 3.0]
    return toy(row)
