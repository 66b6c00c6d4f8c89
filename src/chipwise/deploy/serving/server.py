"""The HTTP server: OpenAI's paths, a chat page, and the predicted speed.

Each request runs in its own thread, where it waits for a free slot of the engine. Pages of other sites in the user's
browser cannot use the server. A POST must have the content type JSON, for which a browser first sends a CORS preflight
request; the server grants none. If a request states an ``Origin``, its host and port must equal the request's ``Host``.
If only this machine can reach the server, ``Host`` must also be the server's own address.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from chipwise.core.results import Result
from chipwise.core.version import VERSION
from chipwise.deploy.serving.engine import CHAT_PAGE, Engine, Piece, Promise
from chipwise.deploy.serving.requests import failure, parsed
from chipwise.errors import ChipwiseError, InputError, MeasurementError, OutputError, UnknownName, counted

MOST_BYTES = 4 << 20  # largest request
MOST_WAITING = 256  # maximum number of requests that are being answered or wait for a slot
IDLE_S = 60.0  # after this time a connection without a request is closed
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_COMPLETIONS = {"/v1/completions": False, "/v1/chat/completions": True}
_GETS = ("/", "/health", "/status", "/v1/models")


class Server(Result):
    """A running server. Close it, or use it as a context manager.

    Args:
        engine: The model; the server closes it.
        name: The model's name in the API.
        host: Address to listen on. Other machines can reach the server unless this is a loopback address (127.0.0.1).
        port: 0 chooses a free one.
        token: Clients must send it as ``Authorization: Bearer TOKEN``. Default: no token on a loopback
            address, else a random one.
        promise: The predicted speed, shown next to the measured speed.

    Raises:
        OutputError: The address cannot be used.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        promise: Promise | None = None,
    ) -> None:
        self.engine, self.name, self.promise = engine, name, promise
        own = _is_own(host)
        self.token = token or (None if own else secrets.token_urlsafe(16))
        try:
            self._http = _Http((host, port), self, hosts=(host, "localhost", "127.0.0.1", "::1") if own else None)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise OutputError(f"cannot listen on {host}, port {port}: {why}; choose others (--host, --port)") from None
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def page(self) -> str:
        """Address of the chat page. The token follows ``#``; browsers do not send that part of an address."""
        return f"{self.url}/#{self.token}" if self.token else f"{self.url}/"

    def headline(self) -> str:
        """The model, and where it is served."""
        return f"{self.name} in {self.engine.runtime} {self.engine.version} on {self.url}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row: the state of the server."""
        return [self.status()]

    def status(self) -> dict[str, object]:
        """The model, its predicted speed, and counts of answers and tokens so far."""
        engine, http = self.engine, self._http
        return {
            **{"model": self.name, "runtime": engine.runtime, "version": engine.version, "chats": engine.chats},
            **{"context": engine.context, "slots": engine.slots},
            "promise": None if self.promise is None else asdict(self.promise),
            **{"running": http.running, "finished": http.finished, "left": http.left, "tokens": http.tokens},
        }

    def summary(self) -> str:
        """A sentence with the numbers of answers and tokens so far."""
        http = self._http
        return f"{counted(http.finished, 'answer')}, {http.left} abandoned by clients, {counted(http.tokens, 'token')}"

    def wait(self) -> None:
        """Serves until the server is closed, or the process is interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Ends running answers, the server and the engine."""
        self._http.closing = True
        self._http.shutdown()
        self._http.server_close()
        self.engine.close()


class _Http(ThreadingHTTPServer):
    """The listening socket, a thread for each connection, and counts of requests."""

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, place: tuple[str, int], owner: Server, *, hosts: tuple[str, ...] | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self.owner, self.hosts, self.closing = owner, hosts, False
        self.running = self.finished = self.left = self.tokens = 0
        self.lock = threading.Lock()
        super().__init__(place, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that leave."""

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request as running.

        Raises:
            MeasurementError: Too many requests are running.
        """
        with self.lock:
            if self.running >= MOST_WAITING:
                raise MeasurementError(f"{MOST_WAITING} requests are waiting; try again later")
            self.running += 1
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1

    def count(self, last: Piece | None) -> None:
        """Adds an answer, which ended with the piece ``last``, to the counts."""
        with self.lock:
            ended = last is not None and last.finish is not None
            self.finished, self.left = self.finished + ended, self.left + (not ended)
            self.tokens += last.tokens if last is not None else 0


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: _Http
    disable_nagle_algorithm = True
    protocol_version, server_version, sys_version, timeout = "HTTP/1.1", f"chipwise/{VERSION}", "", IDLE_S

    def do_GET(self) -> None:
        place = self.path.partition("?")[0]
        models = {"id": self.server.owner.name, "object": "model", "created": 0, "owned_by": "chipwise"}
        if place == "/":
            self._send(HTTPStatus.OK, CHAT_PAGE.read_bytes(), "text/html; charset=utf-8")
        elif not self._allowed():
            return
        elif place == "/health":
            self._json(HTTPStatus.OK, {"status": "ok"})
        elif place == "/status":
            self._json(HTTPStatus.OK, self.server.owner.status())
        elif place == "/v1/models":
            self._json(HTTPStatus.OK, {"object": "list", "data": [models]})
        elif unquote(place) == f"/v1/models/{self.server.owner.name}":
            self._json(HTTPStatus.OK, models)
        elif place in _COMPLETIONS:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, f"{place} needs POST")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {place}; there are {', '.join((*_GETS, *_COMPLETIONS))}")

    def do_POST(self) -> None:
        body, place = self._body(), self.path.partition("?")[0]
        if body is None or not self._allowed():
            return
        if place not in _COMPLETIONS:
            known = HTTPStatus.METHOD_NOT_ALLOWED if place in _GETS else HTTPStatus.NOT_FOUND
            self._refuse(known, f"{place} takes no POST; these do: {', '.join(_COMPLETIONS)}")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as Content-Type: application/json")
            return
        self._streams = False
        try:
            with self.server.counted():
                self._answer(body, chat=_COMPLETIONS[place])
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except UnknownName as error:
            self._fail(HTTPStatus.NOT_FOUND, failure(error, code="model_not_found"))
        except InputError as error:
            self._fail(HTTPStatus.BAD_REQUEST, failure(error))
        except ChipwiseError as error:
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, failure(error))

    def _answer(self, body: bytes, *, chat: bool) -> None:
        """Answers a request, in one piece or as a stream.

        Raises:
            InputError: The request is wrong; nothing is sent yet.
            MeasurementError: The runtime failed, or the server was closed.
        """
        owner = self.server.owner
        request, said = parsed(body, chat=chat, model=owner.name, engine=owner.engine), []
        last: Piece | None = None
        pieces = owner.engine.generate(request.prompt, request.sampling, gone=self._gone)
        try:
            with contextlib.closing(pieces):
                for piece in pieces:
                    if request.stream:
                        self._event(request.chunk(piece, first=last is None))
                    said.append(piece.text)
                    last = piece
        finally:
            if last is not None or self._gone():  # otherwise the request was refused
                self.server.count(last)
        if last is None or last.finish is None:
            self.close_connection = True
            if self.server.closing:
                raise MeasurementError("the server was stopped")
        elif not request.stream:
            self._json(HTTPStatus.OK, request.reply("".join(said), last))
        else:
            if request.include_usage:
                self._event(request.end(last))
            self._event("[DONE]")
            self._end()

    def _gone(self) -> bool:
        """Whether the client closed its connection, or the server is being closed."""
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return self.server.closing or bool(readable and not self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return True

    def _event(self, data: Mapping[str, object] | str) -> None:
        """Sends an event of a stream; before the first event, sends the headers of the response."""
        if not self._streams:
            self._streams, self._chunked = True, self.request_version != "HTTP/1.0"
            framing = ("Transfer-Encoding", "chunked") if self._chunked else ("Connection", "close")
            self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8", framing)
        text = data if isinstance(data, str) else json.dumps(data)
        self._write(f"data: {text}\n\n".encode())

    def _write(self, body: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)

    def _end(self) -> None:
        if self._chunked:
            self._write(b"")

    def _fail(self, status: HTTPStatus, error: Mapping[str, object]) -> None:
        """Sends an error; in a stream as its last event."""
        if not self._streams:
            self._json(status, error)
            return
        self.close_connection = True
        with contextlib.suppress(OSError):
            self._event(error)
            self._end()

    def _body(self) -> bytes | None:
        """The body of the request; None if it was refused."""
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # until the body is read
        if not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "send the body with its Content-Length")
            return None
        if int(length) > MOST_BYTES:
            why = f"the body has {int(length):,} bytes; at most {MOST_BYTES:,} are read"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
            return None
        body = self.rfile.read(int(length))
        self.close_connection = self.request_version == "HTTP/1.0" or self.headers.get("Connection", "") == "close"
        return body

    def _allowed(self) -> bool:
        """Whether the client may ask; if not, this method has answered with the refusal."""
        host, token = self.headers.get("Host", ""), self.server.owner.token
        origin = self.headers.get("Origin")
        foreign = self.server.hosts is not None and urlsplit(f"//{host}").hostname not in self.server.hosts
        if foreign or (origin is not None and urlsplit(origin).netloc != host):
            self._refuse(HTTPStatus.FORBIDDEN, "requests from other sites are refused")
            return False
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            why = InputError("send the token that chipwise serve printed, as Authorization: Bearer TOKEN")
            self._json(HTTPStatus.UNAUTHORIZED, failure(why, code="invalid_api_key"))
            return False
        return True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._json(status, failure(InputError(why)))

    def _json(self, status: HTTPStatus, data: Mapping[str, object]) -> None:
        self._send(status, json.dumps(data).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._head(status, kind, ("Content-Length", str(len(body))))
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, framing: tuple[str, str]) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Cache-Control": "no-store", "Content-Security-Policy": _POLICY}
        for name, value in (*headers.items(), ("X-Content-Type-Options", "nosniff"), framing):
            self.send_header(name, value)
        if self.close_connection and framing[0] != "Connection":
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, form: str, *values: object) -> None:
        """Logs nothing: requests hold what people wrote."""


def _is_own(host: str) -> bool:
    """Whether only this machine can reach the address."""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
