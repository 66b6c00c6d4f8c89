"""The server of the measuring page, and the pages that are open: commands go out, answers come back.

A page asks for its next command by a POST that carries the answer to the previous command. Commands are numbered: a
request that is repeated after a lost connection gets the same command again, and a repeated answer is ignored.

Every address begins with a random token. Only listed files are served; no path is built from a request. A POST is
limited in size, must come from the page itself (its ``Origin``) and must have the fields of :class:`Turn`; nothing in
it is executed.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from chipwise.core.fields import build
from chipwise.deploy.runtimes.web.messages import MOST_POST_BYTES, Got, Turn
from chipwise.errors import InputError, MeasurementError, SpecError

LOOPBACK = "127.0.0.1"
HOLD_S = 10.0  # a request for a command is answered after this time, even if there is none
SILENT_S = 45.0  # a page that has not asked for this long counts as closed
MOST_PAGES = 16
READ_S = 30.0  # time limit in seconds for reading one request
HERE = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".txt": "text/plain; charset=utf-8",
}
ISOLATED = {  # without these, browsers have no threads and a coarse clock
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self' blob:; script-src 'self' blob: 'wasm-unsafe-eval'; "
    "style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Page:
    """One open page, which carries out one command at a time."""

    def __init__(self, got: Got) -> None:
        self.got = got
        self._changed = threading.Condition()
        self._number = self._done = 0
        self._command: Mapping[str, object] = {}
        self._turn: Turn | None = None
        self._end, self._left = "", False
        self._seen = time.monotonic()

    def ask(
        self, do: str, *, timeout_s: float, alive: Callable[[], bool] = lambda: True, **fields: object
    ) -> Mapping[str, object]:
        """Sends the command ``do`` to the page and returns its answer.

        Raises:
            MeasurementError: The page was closed, was too slow, or reported an error.
        """
        with self._changed:
            self._number += 1
            self._command = {"do": do, "number": self._number, **fields}
            self._turn = None
            self._changed.notify_all()
            until = time.monotonic() + timeout_s
            while self._done < self._number:
                now = time.monotonic()
                if now >= until:
                    raise MeasurementError(f"the page has not answered within {timeout_s:g} s")
                if self._left:
                    raise MeasurementError("the page was closed")
                if not alive():
                    raise MeasurementError("the browser has ended; is there enough memory?")
                self._changed.wait(min(0.5, until - now))
            turn = self._turn
        if turn is None or turn.error:
            raise MeasurementError(f"the browser reports: {turn.error if turn else 'no answer'}")
        return turn.answer

    def next_command(self, turn: Turn) -> Mapping[str, object]:
        """Takes the page's answer; returns its next command, or nothing if none comes for some seconds."""
        with self._changed:
            self._seen = time.monotonic()
            if turn.left:
                self._left = True
                self._changed.notify_all()
                return {}
            if turn.done == self._number > self._done:
                self._turn, self._done = turn, turn.done
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._end or self._number > turn.done, HOLD_S)
            self._seen = time.monotonic()
            if self._number > turn.done:
                return self._command
            return {"end": self._end} if self._end else {}

    def end(self, text: str) -> None:
        """Ends the page's work after its last answer; the page then shows ``text``."""
        with self._changed:
            self._end = text
            self._changed.notify_all()

    @property
    def gone(self) -> bool:
        """Whether the page was closed, or is idle and has not asked for a command for a long time."""
        idle = self._done == self._number
        return self._left or (idle and time.monotonic() - self._seen > SILENT_S)


class Server:
    """Serves the page, scripts and models on ``host`` and ``port`` (0: a free one), in separate threads.

    Args:
        scripts: The runtime's files by name.
        on_page: Called once for each new page, in a separate thread, so that it may take long.

    Raises:
        InputError: The address cannot be used.
    """

    def __init__(
        self, scripts: Mapping[str, Path], *, on_page: Callable[[Page], object], host: str = LOOPBACK, port: int = 0
    ) -> None:
        self.token = secrets.token_urlsafe(16)
        own = {name: HERE / name for name in ("page.js", "decoder.js")}
        self.files = {"": HERE / "page.html", **own, **scripts}
        self._pages: dict[str, Page] = {}
        self._lock, self._on_page = threading.Lock(), on_page
        try:
            self._http = _Listener((host, port), partial(_Handler, self))
        except (OSError, OverflowError) as error:
            raise InputError(f"cannot listen on {host}:{port}: {error}") from None
        self.port: int = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def address(self, host: str = LOOPBACK) -> str:
        """The page's address for a browser that reaches this machine as ``host``."""
        return f"http://{host}:{self.port}/{self.token}/"

    def add_model(self, path: Path) -> int:
        """Makes a file available to pages; returns its number."""
        with self._lock:
            number = sum(name.startswith("model/") for name in self.files)
            self.files[f"model/{number}"] = path
        return number

    def take(self, turn: Turn) -> Mapping[str, object]:
        """Answers a page's request.

        Raises:
            SpecError: The page is new but does not say what its browser offers, or too many pages are open.
        """
        with self._lock:
            for name in [name for name, page in self._pages.items() if page.gone]:
                del self._pages[name]
            page = self._pages.get(turn.page)
            if page is None:
                if turn.got is None:
                    raise SpecError("an unknown page; load it again", field="page")
                if len(self._pages) >= MOST_PAGES:
                    raise SpecError(
                        f"{MOST_PAGES} pages are open already; close one and load this one again", field="page"
                    )
                page = self._pages[turn.page] = Page(turn.got)
                threading.Thread(target=self._on_page, args=(page,), daemon=True).start()
        return page.next_command(turn)

    def close(self) -> None:
        """Stops listening."""
        self._http.shutdown()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a broken connection, because the page asks again."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = READ_S
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    server_version, sys_version = "chipwise", ""

    def __init__(self, serves: Server, *args: object) -> None:
        self._serves = serves
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Sends a file of the page, a script or a model."""
        name = self._name()
        path = None if name is None else self._serves.files.get(name)
        if path is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
            return
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            self._head(size, TYPES.get(path.suffix, "application/octet-stream"))
            shutil.copyfileobj(stream, self.wfile)

    def do_POST(self) -> None:
        """Takes a page's answer and sends its next command."""
        if self._name() != "turn":
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
            return
        if self.headers.get("Origin") not in [f"{kind}://{self.headers.get('Host')}" for kind in ("http", "https")]:
            self._refuse(HTTPStatus.FORBIDDEN, "only the page itself may answer")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
            return
        if int(length) > MOST_POST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has at most {MOST_POST_BYTES} bytes")
            return
        try:
            turn = build(Turn, json.loads(self.rfile.read(int(length))))
            reply = json.dumps(self._serves.take(turn)).encode()
        except (SpecError, ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"not an answer of this page: {error}"[:200])
            return
        self._head(len(reply), "application/json")
        self.wfile.write(reply)

    def _name(self) -> str | None:
        """Returns the name of the requested file if the address begins with the token, else None."""
        token, slash, name = self.path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self._serves.token.encode())
        return name.partition("?")[0] if known and slash else None

    def _head(self, size: int, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in {**ISOLATED, "Content-Type": kind, "Content-Length": str(size)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answers with an error and closes the connection, because what was sent may not have been read."""
        self.close_connection = True
        self._head(len(text.encode()), TYPES[".txt"], status)
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Logs nothing, because the terminal shows the command's output."""
