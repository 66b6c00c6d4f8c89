"""ONNX Runtime Web (WebAssembly with SIMD, on one or more threads) in a browser, for the files of ONNX Runtime.

The runtime that chipwise starts by itself; see ``web/`` for the page and what runs in it.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path

from chipwise.core.extras import require
from chipwise.deploy.runtimes import Session
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.packages import ORT, files_of
from chipwise.deploy.runtimes.web.server import Page, Server
from chipwise.deploy.runtimes.web.sessions import Place
from chipwise.errors import MeasurementError

require("onnx")  # reads the file's metadata, so this runtime is missing without it

START_S = 60.0

_started: dict[int, Place] = {}


def started(threads: int) -> Place:
    """A page in a headless browser of this process, whose models run with ``threads`` threads."""
    place = _started.get(threads)
    if place is None or place.browser is None or not place.browser.alive():
        pages: queue.SimpleQueue[Page] = queue.SimpleQueue()
        server = Server(files_of(ORT), on_page=pages.put)
        browser = Chromium(server.address())
        try:
            place = _started[threads] = Place(server, pages.get(timeout=START_S), browser)
        except queue.Empty:
            browser.close()
            raise MeasurementError(f"the browser did not open the page within {START_S:g} s") from None
    return place


class Browser:
    """ONNX Runtime Web in a headless Chromium. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name = "browser"

    def version(self) -> str:
        """The version of ONNX Runtime Web."""
        return ORT.version

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]) -> Session:
        """Loads an exported ONNX file in a page.

        Raises:
            MeasurementError: The file cannot be run, or options are given.
            Unreachable: There is no browser here, or ONNX Runtime Web is not in the cache and cannot be fetched.
        """
        if options:
            raise MeasurementError(f"the browser takes no options, not {sorted(options)}")
        return started(threads).load(Path(path), capacity=capacity, batch=batch, threads=threads)
