"""Runtimes that chipwise starts by itself: pages in a headless browser of this process."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from chipwise.deploy.runtimes import Session
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.engines import Engine
from chipwise.deploy.runtimes.web.server import Page, Server
from chipwise.deploy.runtimes.web.sessions import Place
from chipwise.errors import MeasurementError

START_S = 60.0

_started: dict[tuple[str, int], Place] = {}


def started(engine: Engine, threads: int) -> Place:
    """Opens a page in a headless browser of this process; its models run in ``engine`` with ``threads`` threads."""
    place = _started.get((engine.name, threads))
    if place is None or place.browser is None or not place.browser.alive():
        pages: queue.SimpleQueue[Page] = queue.SimpleQueue()
        server = Server(engine.scripts(), on_page=pages.put)
        browser = Chromium(server.address())
        try:
            place = _started[engine.name, threads] = Place(engine, server, pages.get(timeout=START_S), browser)
        except queue.Empty:
            browser.close()
            raise MeasurementError(f"the browser did not open the page within {START_S:g} s") from None
    return place


class InPage:
    """An engine in a headless Chromium. See :class:`chipwise.deploy.runtimes.Runtime`."""

    name: str
    engine: ClassVar[Engine]

    def version(self) -> str:
        """The version of the engine's npm package."""
        return self.engine.package.version

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: Mapping[str, object]) -> Session:
        """Loads an exported file in a page.

        Raises:
            MeasurementError: The file cannot be run, or an option is unknown.
            Unreachable: There is no browser here, or the package is not in the cache and cannot be fetched.
            Unsupported: The engine runs one sequence, and more are asked for.
        """
        place = started(self.engine, threads)
        return place.load(Path(path), capacity=capacity, batch=batch, threads=threads, options=options)
