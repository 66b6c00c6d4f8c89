"""An ssh daemon on this machine with its own keys, which tests start, disconnect and stop."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@dataclass
class Daemon:
    """The daemon: ``client`` is the command that reaches ``host``."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    @property
    def client(self) -> str:
        known = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        return f"ssh -p {self.port} -i {self.folder}/user {known}"

    def start(self) -> None:
        """Starts it and waits until it listens."""
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", f"{self.folder}/sshd_config"], stderr=log)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        pytest.skip(f"sshd does not start here: {(self.folder / 'log').read_text()[-200:]}")

    def stop(self) -> None:
        """Stops the daemon; open connections continue."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    def drop_when(self, running: str, *, timeout_s: float = 120.0) -> None:
        """Ends the daemon and its connections, as a power cut would, once ``running`` runs in one of them."""
        assert self.process is not None
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            there = psutil.Process(self.process.pid).children(recursive=True)
            if any(running in " ".join(_command(each)) and "sshd" not in _name(each) for each in there):
                break
            time.sleep(0.02)
        sessions = [each for each in there if _name(each).startswith("sshd")]
        self.stop()
        for each in sessions:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _command(process: psutil.Process) -> list[str]:
    """Command line of the process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    """Name of the process; empty if it has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def ssh_daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon whose files are in ``folder``."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("needs an ssh client and sshd (apt install openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    folder.chmod(0o700)
    shutil.copy(folder / "user.pub", folder / "authorized")
    daemon = Daemon(folder)
    (folder / "sshd_config").write_text(
        f"Port {daemon.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"StrictModes no\nUsePAM no\nPidFile {folder}/pid\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
