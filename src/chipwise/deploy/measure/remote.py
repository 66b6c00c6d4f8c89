"""Measures on another machine over plain ssh: a board or a phone with Python, numpy and the runtime.

chipwise need not be installed there: an archive of its source, the model and the reference model is copied to a
temporary folder; the measuring process runs there and prints its samples; then the folder is removed.

``CHIPWISE_SSH`` is the command that reaches the machine (default: ``ssh``), ``CHIPWISE_REMOTE_PYTHON`` its Python.

A failed or lost connection, or a machine without a suitable Python, raises :class:`Unreachable`, which is not counted
against the model.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from chipwise.deploy.measure.messages import Request
from chipwise.errors import InputError, Unreachable

CONNECT_S = 60.0  # limit on connecting and copying, in addition to the measurement
SSH_FAILED, NOT_FOUND = 255, 127  # exit codes: ssh cannot connect; the shell does not find the program
_ALIVE = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_ABLE = """\
import sys
if sys.version_info < (3, 11):
    sys.exit("its Python is %d.%d" % sys.version_info[:2])
import numpy
"""


def prepare_remote(request: Request, *, host: str) -> tuple[Request, list[str]]:
    """Copies the files of ``request`` to ``host``.

    Returns:
        The request with the paths on ``host``, and the command that measures there.

    Raises:
        InputError: The host's name would be read as an option of ssh.
        Unreachable: The machine cannot be reached, or has no Python that can measure.
    """
    if host.startswith("-") or not host:
        raise InputError(f"--remote {host!r} is not a machine; write user@host")
    ssh = [*shlex.split(os.environ.get("CHIPWISE_SSH", "ssh")), *_ALIVE, host]
    python = shlex.quote(os.environ.get("CHIPWISE_REMOTE_PYTHON", "python3"))
    folder = f"/tmp/chipwise-{uuid.uuid4().hex}"
    model, reference = Path(request["model"]), request["reference"] and Path(request["reference"])
    there = {
        path: f"{folder}/{name}{path.suffix}" for name, path in (("model", model), ("reference", reference)) if path
    }
    archive = _archive({Path(place).name: path for path, place in there.items()})
    able = f"command -v {python} >/dev/null || exit {NOT_FOUND}; {python} -c {shlex.quote(_ABLE)}"
    _run(ssh, f"{able} && mkdir -m 700 {folder} && tar -x -C {folder} -f -", archive, python=python)
    threads = int(request["threads"])
    measuring = (
        f"cd {folder} && PYTHONPATH={folder} OMP_NUM_THREADS={threads} OPENBLAS_NUM_THREADS={threads} "
        f"{python} -m chipwise.deploy.measure.worker; status=$?; rm -rf {folder}; exit $status"
    )
    changed: Request = {
        **request,
        "model": there[model],
        "reference": there[reference] if reference else None,
        "cpus": None,
        "memory_limit_bytes": None,
        "describe": True,
    }
    return changed, [*ssh, measuring]


def _archive(files: Mapping[str, Path]) -> bytes:
    """A tar archive of this package's source and of ``files`` under new names."""
    package = Path(__file__).parents[2]
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(package.rglob("*.py")):
            archive.add(path, arcname=f"chipwise/{path.relative_to(package)}")
        for name, path in files.items():
            archive.add(path, arcname=name)
    return held.getvalue()


def _run(ssh: list[str], command: str, data: bytes, *, python: str) -> None:
    try:
        done = subprocess.run([*ssh, command], input=data, capture_output=True, timeout=CONNECT_S, check=False)
    except FileNotFoundError:
        raise Unreachable(f"{ssh[0]}: there is no such program; install an ssh client") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{ssh[-1]}: no answer within {CONNECT_S:g} s") from None
    tail = " | ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
    if done.returncode == NOT_FOUND:
        raise Unreachable(
            f"{ssh[-1]}: there is no {python} there; measuring needs Python 3.11 or newer with numpy and the runtime's "
            "package (CHIPWISE_REMOTE_PYTHON names another Python)"
        )
    if done.returncode:
        why = "ssh failed" if done.returncode == SSH_FAILED else f"cannot measure (code {done.returncode})"
        raise Unreachable(f"{ssh[-1]}: {why}. {tail}")


def check_connection(host: str, code: int | None, message: str) -> None:
    """Checks whether a lost connection caused the exit code ``code`` of a measuring process.

    Raises:
        Unreachable: The connection was lost.
    """
    if code == SSH_FAILED:
        raise Unreachable(f"{host}: the connection was lost while measuring: {message}")
