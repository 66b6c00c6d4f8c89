"""Measuring over ssh, against a daemon on this machine that the test starts and ends."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import free_port, ssh_daemon

from chipwise.deploy.measure.harness import measure
from chipwise.errors import InputError, MeasurementError, Unreachable
from chipwise.hardware.detect import detect
from chipwise.model.ops.workload import Workload

WORKLOAD = Workload(prompt_tokens=4, new_tokens=9)
SETTINGS = {"runtime": "fake", "seconds": 0.1, "attempts": 1}


@pytest.fixture
def host(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """``user@127.0.0.1``, reached by the daemon's keys."""
    with ssh_daemon(tmp_path) as daemon:
        monkeypatch.setenv("CHIPWISE_SSH", daemon.client)
        monkeypatch.setenv("CHIPWISE_REMOTE_PYTHON", sys.executable)
        yield daemon.host


def model(folder: Path, **facts) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 6e-4, "decode_s": 3e-4, **facts}))
    return path


def test_samples_come_back_and_nothing_stays_behind(host: str, tmp_path, monkeypatch) -> None:
    name = uuid.uuid4()
    monkeypatch.setattr(uuid, "uuid4", lambda: name)
    found = measure(model(tmp_path), WORKLOAD, remote=host, **SETTINGS)
    assert len(found.tpot_s) >= 200
    assert min(found.tpot_s) >= 3e-4
    assert found.device == detect().name
    assert found.environment["reference_s"]["reference_decode_s"] > 0
    assert not Path(f"/tmp/chipwise-{name.hex}").exists()


def test_what_fails_there_is_said_here(host: str, tmp_path) -> None:
    with pytest.raises(MeasurementError, match="not finite"):
        measure(model(tmp_path, fault="nan"), WORKLOAD, remote=host, **SETTINGS)


def test_a_machine_that_is_not_there(host: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPWISE_SSH", f"ssh -p {free_port()} -o ConnectTimeout=5")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1.*refused"):
        measure(model(tmp_path), WORKLOAD, remote=host, **SETTINGS)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("no-such-python", r"there is no no-such-python there; measuring needs Python 3\.11"),
        ("old", r"cannot measure .*its Python is 3\.8"),
        ("bare", r"cannot measure .*No module named 'numpy'"),
    ],
)
def test_a_machine_without_a_python_that_can_measure(host: str, tmp_path, monkeypatch, python, message) -> None:
    """Two fake interpreters: one reports version 3.8, one has no packages."""
    changed = {"old": "import sys; sys.version_info = (3, 8)", "bare": "import sys; sys.path[:] = sys.path[:3]"}
    if python in changed:
        path = tmp_path / python
        flags = "-I -S" if python == "bare" else ""
        path.write_text(
            f'#!/bin/sh\nshift\nprogram="{changed[python]}\n$1"\nexec {sys.executable} {flags} -c "$program"\n'
        )
        path.chmod(0o700)
    monkeypatch.setenv("CHIPWISE_REMOTE_PYTHON", str(tmp_path / python) if python in changed else python)
    with pytest.raises(Unreachable, match=message):
        measure(model(tmp_path), WORKLOAD, remote=host, **SETTINGS)


def test_a_connection_that_drops_while_measuring_is_not_the_models_fault(tmp_path, monkeypatch) -> None:
    with ssh_daemon(tmp_path) as daemon:
        monkeypatch.setenv("CHIPWISE_SSH", daemon.client)
        monkeypatch.setenv("CHIPWISE_REMOTE_PYTHON", sys.executable)
        timer = threading.Timer(0.2, daemon.drop_when, args=("chipwise.deploy.measure.worker",))
        timer.start()
        with pytest.raises(Unreachable, match=r"@127\.0\.0\.1: the connection was lost while measuring"):
            measure(model(tmp_path), WORKLOAD, remote=daemon.host, **{**SETTINGS, "seconds": 20})
        timer.join()


def test_an_option_is_no_machine(tmp_path) -> None:
    with pytest.raises(InputError, match="user@host"):
        measure(model(tmp_path), WORKLOAD, remote="-oProxyCommand=true", **SETTINGS)
