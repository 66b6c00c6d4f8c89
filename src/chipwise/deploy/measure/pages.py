"""Measures a model in every browser that opens an address: on phones and other machines that need only a browser.

Each page is measured in a separate thread, so a closed tab, a slow network or a second phone does not disturb other
measurements.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Protocol

import numpy as np

from chipwise.deploy.measure.harness import make_request, measurement_of
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.messages import Reply, unobserved
from chipwise.deploy.measure.worker import Loop, requested, time_requests, told, warm_up
from chipwise.deploy.runtimes.web.engines import ENGINES
from chipwise.deploy.runtimes.web.server import Page, Server
from chipwise.deploy.runtimes.web.sessions import Place
from chipwise.errors import ChipwiseError, InputError
from chipwise.model.ops.workload import Workload

TIMEOUT_S = 120.0  # limit on a measurement, after loading
MOST_PORT = 65535


class OnResult(Protocol):
    """Called with each page's measurement, or with the reason why there is none."""

    def __call__(self, machine: str, found: Measurement | ChipwiseError) -> object:
        """Receives the result of one page; the call must be quick. Calls do not overlap."""
        ...


class Pages:
    """Serves the measuring page at ``listen`` (``host:port``) until it is closed.

    Args:
        model: The exported file.
        workload: Prompt and new tokens of one request.
        listen: Where to listen, such as ``0.0.0.0:8000``; port 0 is a free one.
        runtime: What runs the model in the page, ``browser`` or ``wllama``.
        threads: Threads of the runtime; a page that has fewer is refused.
        on_result: Receives the measurements.

    Raises:
        InputError: ``listen`` is not an address, or cannot be used.
        Unreachable: The runtime's package is not in the cache and cannot be fetched.
    """

    def __init__(
        self, model: Path, workload: Workload, *, listen: str, runtime: str, threads: int, on_result: OnResult
    ) -> None:
        self._model, self._workload, self._threads = model, workload, threads
        self._engine = ENGINES[runtime]
        self._on_result, self._lock = on_result, threading.Lock()
        self._host, port = parse_address(listen)
        self._server = Server(self._engine.scripts(), on_page=self._measure, host=self._host, port=port)

    @property
    def address(self) -> str:
        """What to open in a browser. If the server listens on all addresses, this machine's address in its network."""
        return self._server.address(_reached_as() if self._host in ("0.0.0.0", "") else self._host)

    def close(self) -> None:
        """Stops listening; pages that are being measured get no more answers."""
        self._server.close()

    def _measure(self, page: Page) -> None:
        found: Measurement | ChipwiseError
        try:
            found = self._measured(Place(self._engine, self._server, page))
            text = "Finished; the result is stored on the machine that gave the address. This page may be closed."
        except ChipwiseError as error:
            found, text = error, f"It could not be measured: {error}"
        page.end(text)
        with self._lock:
            self._on_result(page.got.machine, found)

    def _measured(self, place: Place) -> Measurement:
        asked, page = self._workload, place.page
        session = place.load(self._model, capacity=asked.total_tokens, batch=asked.batch, threads=self._threads)
        request = make_request(
            self._model,
            asked,
            runtime=self._engine.name,
            threads=1,
            seconds=1.5,
            timeout_s=TIMEOUT_S,
            repeats=100,
            prefills=20,
        )
        tokens = requested(session, np.random.default_rng(0), batch=asked.batch, prompt=asked.prompt_tokens)
        steps = 0 if "encodes" in session.facts else max(1, asked.new_tokens - 1)
        loop = Loop(session, tokens, steps=steps)
        warm_up(loop, request["warm_up_s"])
        loop.clear()
        time_requests(loop, request)
        loop.check()
        reply: Reply = {
            **unobserved(),
            "machine": page.got.machine,
            "runtime_version": self._engine.package.version,
            "facts": told(session.facts),
            "ttft_s": loop.ttft_s,
            "tpot_s": loop.tpot_s,
            "wall_s": sum(loop.ttft_s) + sum(loop.tpot_s) * session.steps_per_sample,
            "peak_memory_bytes": session.peak_memory_bytes(),
            "settings": session.settings(),
            "steps_per_sample": session.steps_per_sample,
        }
        return measurement_of(
            reply, model=self._model, workload=asked, runtime=self._engine.name, threads=self._threads
        )


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        InputError: The text does not have this form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > MOST_PORT:
        raise InputError(
            f"--listen {text!r} is not an address; write HOST:PORT, such as 127.0.0.1:8000 or 0.0.0.0:8000"
        )
    return host, int(port)


def _reached_as() -> str:
    """Returns this machine's address on the route to other networks, without sending a packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
