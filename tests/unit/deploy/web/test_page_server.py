"""The measuring page's server, with an HTTP client that plays the page."""

from __future__ import annotations

import http.client
import json
import queue
import threading

import pytest

from chipwise.deploy.runtimes.web import server as web
from chipwise.deploy.runtimes.web.messages import MOST_POST_BYTES
from chipwise.deploy.runtimes.web.server import Server
from chipwise.errors import InputError, MeasurementError

GOT = {"threads": 2, "clock_s": 5e-6, "isolated": True, "webgpu": "none", "agent": "a test"}


@pytest.fixture
def pages():
    return queue.SimpleQueue()


@pytest.fixture
def server(tmp_path, monkeypatch, pages):
    monkeypatch.setattr(web, "HOLD_S", 0.2)
    script = tmp_path / "tool.mjs"
    script.write_text("export {};")
    made = Server({"tool.mjs": script}, on_page=pages.put)
    yield made
    made.close()


def ask(server, method, path, body=None, **headers):
    """Status and body of one request, with the page's own Origin unless another is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    origin = {"Origin": f"http://127.0.0.1:{server.port}"} if method == "POST" else {}
    connection.request(method, path, body=body, headers=origin | headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def turn(server, **fields):
    status, body, _ = ask(server, "POST", f"/{server.token}/turn", json.dumps({"page": "p", "done": 0} | fields))
    return status, json.loads(body) if status == 200 else body.decode()


def in_background(run):
    """Starts ``run`` in a thread; returns a function that waits for its result or error."""
    found = queue.SimpleQueue()

    def work():
        try:
            found.put((run(), None))
        except MeasurementError as error:
            found.put((None, error))

    threading.Thread(target=work, daemon=True).start()

    def result():
        value, error = found.get(timeout=10)
        if error is not None:
            raise error
        return value

    return result


@pytest.fixture
def page(server, pages):
    assert turn(server, got=GOT)[1] == {}
    return pages.get(timeout=5)


def test_a_command_goes_out_and_its_answer_comes_back(server, page):
    answer = in_background(lambda: page.ask("memory", timeout_s=5, model=3))
    status, command = turn(server)
    assert (status, command) == (200, {"do": "memory", "number": 1, "model": 3})
    turn(server, done=1, answer={"bytes": 7})
    assert answer() == {"bytes": 7}


def test_a_turn_repeated_after_a_lost_connection_changes_nothing(server, page):
    first = in_background(lambda: page.ask("run", timeout_s=5))
    assert turn(server)[1]["number"] == 1
    assert turn(server)[1]["number"] == 1  # the reply was lost: the same command again
    turn(server, done=1, answer={"x": 1})
    assert first() == {"x": 1}
    second = in_background(lambda: page.ask("run", timeout_s=5))
    assert turn(server, done=1, answer={"x": 1})[1]["number"] == 2  # the same answer again is not taken for the next
    turn(server, done=2, answer={"x": 2})
    assert second() == {"x": 2}


def test_a_closed_tab_ends_the_command(server, page):
    answer = in_background(lambda: page.ask("run", timeout_s=5))
    turn(server)
    turn(server, left=True)
    with pytest.raises(MeasurementError, match="the page was closed"):
        answer()


def test_a_silent_page_ends_the_command_in_time(page):
    with pytest.raises(MeasurementError, match=r"not answered within 0\.1 s"):
        page.ask("run", timeout_s=0.1)


def test_a_pages_error_is_the_commands(server, page):
    answer = in_background(lambda: page.ask("open", timeout_s=5))
    turn(server)
    turn(server, done=1, error="no such operator")
    with pytest.raises(MeasurementError, match="no such operator"):
        answer()


def test_two_pages_do_not_see_each_others_commands(server, pages):
    for name in ("a", "b"):
        turn(server, page=name, got={**GOT, "agent": name})
    found = {page.got.agent: page for page in (pages.get(timeout=5), pages.get(timeout=5))}
    answers = {name: in_background(lambda name=name: found[name].ask(f"for {name}", timeout_s=5)) for name in found}
    for name in ("b", "a"):
        assert turn(server, page=name)[1]["do"] == f"for {name}"
        turn(server, page=name, done=1, answer={"of": name})
    assert {name: answer() for name, answer in answers.items()} == {"a": {"of": "a"}, "b": {"of": "b"}}


def test_files_are_served_isolated_and_only_listed_ones(server):
    for name in ("", "page.js", "tool.mjs"):
        status, body, headers = ask(server, "GET", f"/{server.token}/{name}")
        assert status == 200
        assert body
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    for path in (f"/{server.token}/../server.py", f"/{server.token}/%2e%2e/x", f"/{server.token}", "/", "/page.js",
                 f"/{server.token}x/page.js", f"/{server.token}/etc/passwd", "//"):  # fmt: skip
        assert ask(server, "GET", path)[0] == 404


def test_a_model_is_a_file_by_its_number(server, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"12345")
    assert server.add_model(tmp_path / "m.onnx") == 0
    assert ask(server, "GET", f"/{server.token}/model/0")[1] == b"12345"
    assert ask(server, "GET", f"/{server.token}/model/1")[0] == 404


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Origin": "http://evil.example"}, 403),
        ("{}", {"Origin": "null"}, 403),
        (None, {"Content-Length": str(MOST_POST_BYTES + 1)}, 413),
        (None, {"Content-Length": "-1"}, 411),
        (None, {"Content-Length": "1e3"}, 411),
        ("not JSON", {}, 400),
        ("[" * 100_000, {}, 400),
        ("[]", {}, 400),
        ("{}", {}, 400),
        ('{"page": "p", "done": 0}', {}, 400),  # unknown, and does not introduce itself
        ('{"page": "p", "done": 0, "run": "rm"}', {}, 400),
        ('{"page": "\\u001b[2J", "done": 0}', {}, 400),
        (json.dumps({"page": "p", "done": 0, "got": {**GOT, "agent": "\x1b[31m"}}), {}, 400),
        (json.dumps({"page": "p", "done": 0, "got": {**GOT, "agent": "x" * 1000}}), {}, 400),
        (json.dumps({"page": "p", "done": 0, "got": {**GOT, "threads": 0}}), {}, 400),
        (json.dumps({"page": "p", "done": 0, "got": {**GOT, "clock_s": float("nan")}}), {}, 400),
        (b"\xff\xfe", {}, 400),
    ],
)
def test_a_hostile_post_is_refused(server, pages, body, headers, status):
    assert ask(server, "POST", f"/{server.token}/turn", body, **headers)[0] == status
    assert pages.empty()


def test_a_post_without_the_token_is_refused(server, pages):
    assert ask(server, "POST", "/turn", json.dumps({"page": "p", "done": 0, "got": GOT}))[0] == 404
    assert pages.empty()


def test_no_more_pages_than_a_limit(server):
    statuses = [turn(server, page=f"p{i}", got=GOT)[0] for i in range(web.MOST_PAGES + 1)]
    assert statuses == [200] * web.MOST_PAGES + [400]


def test_an_address_in_use_is_one_line(server):
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        Server({}, on_page=print, port=server.port)
