"""A headless Chromium that opens one page and ends together with this process."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import weakref
from pathlib import Path

import psutil

from chipwise.deploy.runtimes import BROWSERS, program_of
from chipwise.errors import Unreachable

FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-renderer-backgrounding",
    "--disable-sync",
    "--enable-blink-features=ForceEagerMeasureMemory",  # so that measureUserAgentSpecificMemory answers at once
)
_OWN_WINDOW = "--top-chrome-webui"  # option of a process that draws the browser's own window


class Chromium:
    """A running browser.

    Raises:
        Unreachable: There is no browser on this machine.
    """

    def __init__(self, address: str) -> None:
        program = program_of(BROWSERS)
        if program is None:
            raise Unreachable(
                f"measuring in a browser needs Chromium or Chrome: none of {', '.join(BROWSERS)} is on the PATH; "
                "install one (Debian: apt install chromium) or name its program in CHIPWISE_BROWSER"
            )
        folder = tempfile.mkdtemp(prefix="chipwise-browser-")
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium's sandbox refuses to run as root
        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit[1], limit[1]))  # browsers reserve terabytes of addresses
        try:
            self._process = subprocess.Popen(
                [*_tied(), program, *FLAGS, *root, f"--user-data-dir={folder}", address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limit)
        self._page_pid: int | None = None
        self.close = weakref.finalize(self, _end, self._process, Path(folder))

    def alive(self) -> bool:
        """Whether the browser is running."""
        return self._process.poll() is None

    def page_cpu_s(self) -> float | None:
        """Processor seconds of the page's main thread so far, to the nanosecond; None if the system does not say."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            return _thread_s(self._page())
        return None

    def page_bytes(self) -> int | None:
        """Memory of the page's process, including its workers; None if the system does not report it."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            return int(psutil.Process(self._page()).memory_info().rss)
        return None

    def _page(self) -> int:
        if self._page_pid is None:
            children = psutil.Process(self._process.pid).children(recursive=True)
            lines = {each.pid: " ".join(each.cmdline()) for each in children}
            pages = [pid for pid, line in lines.items() if "--type=renderer" in line and _OWN_WINDOW not in line]
            self._page_pid = max(pages, key=_thread_s)  # any other one is a spare
        return self._page_pid

    def cpu_s(self) -> float:
        """Processor seconds of all processes of the browser so far."""
        total = 0.0
        with contextlib.suppress(psutil.Error):
            main = psutil.Process(self._process.pid)
            for process in (main, *main.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total


def _tied() -> tuple[str, ...]:
    """Returns words to put before a command, so that its program is killed when this process ends for any reason.

    Returns nothing if the system has no ``setpriv``.
    """
    found = shutil.which("setpriv")
    return () if found is None else (found, "--pdeathsig", "KILL")


def _thread_s(pid: int) -> float:
    """Processor seconds of a process's main thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends the browser and its processes and removes its folder."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.send_signal(signal.SIGKILL)
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
