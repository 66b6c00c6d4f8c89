"""Measuring over ssh, against a daemon on this machine that the test starts and ends."""

from __future__ import annotations

import getpass
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chipwise.core.errors import InputError, MeasurementError
from chipwise.hardware.detect import detect
from chipwise.ops import Workload
from chipwise.profile.harness import measure

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
WORKLOAD = Workload(prompt_tokens=4, new_tokens=9)
SETTINGS = {"runtime": "fake", "seconds": 0.1, "attempts": 1}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture
def host(tmp_path: Path, monkeypatch):
    """``user@127.0.0.1`` of a daemon with keys of its own."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("needs an ssh client and sshd (apt install openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    tmp_path.chmod(0o700)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"StrictModes no\nUsePAM no\nPidFile {tmp_path}/pid\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
    log = (tmp_path / "log").open("w")
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
    client = f"ssh -p {port} -i {tmp_path}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    monkeypatch.setenv("CHIPWISE_SSH", f"{client} -o LogLevel=ERROR")
    monkeypatch.setenv("CHIPWISE_REMOTE_PYTHON", sys.executable)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshd does not start here: {(tmp_path / 'log').read_text()[-200:]}")
        yield f"{getpass.getuser()}@127.0.0.1"
    finally:
        daemon.terminate()
        daemon.wait()
        log.close()


def model(folder: Path, **facts) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 6e-4, "decode_s": 3e-4, **facts}))
    return path


def test_samples_come_back_and_nothing_stays_behind(host: str, tmp_path) -> None:
    before = set(Path("/tmp").glob("chipwise-*"))
    found = measure(model(tmp_path), WORKLOAD, remote=host, **SETTINGS)
    assert len(found.tpot_s) >= 200
    assert min(found.tpot_s) >= 3e-4
    assert found.device == detect().name
    assert found.environment["reference_s"]["reference_decode_s"] > 0
    assert set(Path("/tmp").glob("chipwise-*")) <= before


def test_what_fails_there_is_said_here(host: str, tmp_path) -> None:
    with pytest.raises(MeasurementError, match="not finite"):
        measure(model(tmp_path, fault="nan"), WORKLOAD, remote=host, **SETTINGS)


def test_a_machine_that_is_not_there(host: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPWISE_SSH", f"ssh -p {free_port()} -o ConnectTimeout=5")
    with pytest.raises(MeasurementError, match=r"127\.0\.0\.1.*refused"):
        measure(model(tmp_path), WORKLOAD, remote=host, **SETTINGS)


def test_an_option_is_no_machine(tmp_path) -> None:
    with pytest.raises(InputError, match="user@host"):
        measure(model(tmp_path), WORKLOAD, remote="-oProxyCommand=true", **SETTINGS)
