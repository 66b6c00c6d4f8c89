"""``measure --listen``: pages on other machines, played by an HTTP client; one real browser as a phone."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import itertools
import json
import queue
import sys
import threading
import urllib.parse

import numpy as np
import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.deploy.runtimes import missing
from chipwise.deploy.runtimes.web import packages
from chipwise.deploy.runtimes.web import server as web
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.messages import Got
from chipwise.deploy.runtimes.web.packages import FETCH, ORT
from chipwise.design.models import pages
from chipwise.errors import InputError, MeasurementError
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform

pytest.importorskip("onnx", reason="exports the model: pip install 'chipwise[search]'")
LACKS = missing("browser") or (None if ORT.kept else f"not fetched from npm's package index; do so with: {FETCH}")
VOCAB, SLOWEST_S = 64, 60
ANDROID = "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Mobile"
GOT = {"threads": 1, "clock_s": 1e-4, "isolated": False, "webgpu": "none", "agent": ANDROID, "name": ""}


class Phone(threading.Thread):
    """Plays the page: every pass takes ``step_s``; it leaves at the command ``leaves_at``."""

    def __init__(self, address: str, *, name: str, step_s: float = 0.002, leaves_at: int = -1, **got: object) -> None:
        super().__init__(daemon=True)
        self.place = urllib.parse.urlparse(address)
        self.got, self.name_, self.step_s, self.leaves_at = GOT | {"name": name} | got, name, step_s, leaves_at
        self.end = ""
        self.start()

    def turn(self, **fields: object) -> dict:
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port, timeout=SLOWEST_S)
        body = json.dumps({"page": self.name_, "done": 0} | fields)
        connection.request("POST", f"{self.place.path}turn", body, {"Origin": f"http://{self.place.netloc}"})
        return json.loads(connection.getresponse().read())

    def run(self) -> None:
        done: dict[str, object] = {"done": 0, "got": self.got}
        for number in itertools.count(1):
            while not (command := self.turn(**done)):
                pass
            if "end" in command:
                self.end = command["end"]
                return
            if number == self.leaves_at:
                self.turn(left=True)
                return
            done = {"done": command["number"], "answer": self.answer(command)}

    def answer(self, command: dict) -> dict:
        if command["do"] == "generate":
            logits = base64.b64encode(np.ones(VOCAB, np.float32)).decode()
            times = 1 + command["steps"] // command["every"]
            output = {"type": "float32", "dims": [1, 1, VOCAB], "data": logits}
            return {"seconds": [self.step_s] * times, "output": output if command["wanted"] else None}
        return {"bytes": None} if command["do"] == "memory" else {"input": "tokens"}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    path = tmp_path / "spec.json"
    io.save(uniform(vocab_size=VOCAB, d_model=32, depth=1, heads=1, ffn_width=64, max_tokens=64, name="tiny"), path)
    return str(path)


@pytest.fixture
def listening(spec, tmp_path, monkeypatch):
    """Starts measuring for a number of pages; returns the address and a function that waits for all results."""
    monkeypatch.setattr(web, "HOLD_S", 0.2)

    def start(count, *, real=False, **how):
        if not real:  # the page is played, so its scripts are not needed
            monkeypatch.setattr(packages.Package, "kept", True)
        opened, results = queue.SimpleQueue(), []

        def work():
            measured = api.measure_pages(
                spec, listen="127.0.0.1:0", prompt=4, new=9, count=count,
                on_open=lambda address, code: opened.put(address),
                on_result=lambda machine, found: results.append((machine, found)), **how,
            )  # fmt: skip
            opened.put(measured)

        threading.Thread(target=work, daemon=True).start()
        return opened.get(timeout=SLOWEST_S), lambda: (opened.get(timeout=SLOWEST_S), dict(results))

    return start


def test_a_phones_measurement_is_stored_under_its_own_name(listening):
    address, results = listening(1)
    phone = Phone(address, name="my phone")
    (found,), _ = results()
    phone.join(SLOWEST_S)
    assert "Finished" in phone.end
    assert found.device == "my phone, Chrome 156"
    assert found.metric("tpot_p50") == pytest.approx(0.002)
    assert found.steps_per_sample == 5  # 100 steps of a clock of 0.1 ms are 10 ms, five decode steps of 2 ms
    assert found.environment["clock_step_s"] == 1e-4
    (kept,) = MeasurementStore().entries(device="my phone, Chrome 156")
    assert kept.source == "measure in a browser elsewhere"
    assert kept.design is not None


def test_two_phones_at_once_and_a_closed_tab(listening):
    address, results = listening(3)
    Phone(address, name="slow", step_s=0.02)
    Phone(address, name="fast", step_s=0.002)
    Phone(address, name="left", leaves_at=4)
    measured, each = results()
    assert {m.device: m.metric("tpot_p50") for m in measured} == {
        "slow, Chrome 156": pytest.approx(0.02),
        "fast, Chrome 156": pytest.approx(0.002),
    }
    assert "the page was closed" in str(each["left, Chrome 156"])


def test_more_threads_than_a_page_has_are_refused_with_the_reason(listening):
    address, results = listening(1, threads=4)
    Phone(address, name="one thread")
    measured, each = results()
    assert measured == []
    assert "threads: this page has at most 1, not 4; a browser gives threads only over https" in str(*each.values())


def test_a_clock_too_coarse_for_the_model_is_an_error_not_a_zero(listening):
    address, results = listening(1)
    Phone(address, name="coarse", step_s=0.0, clock_s=1e-3)
    _, each = results()
    (error,) = each.values()
    assert isinstance(error, MeasurementError)
    assert "steps of 1 ms, too coarse" in str(error)


@pytest.mark.parametrize("listen", ["8000", "0.0.0.0", ":8000", "0.0.0.0:99999", "0.0.0.0:x", "not.a.host.:80"])
def test_what_is_no_address_is_one_line(spec, monkeypatch, listen):
    monkeypatch.setattr(packages.Package, "kept", True)
    with pytest.raises(InputError, match="listen"):
        api.measure_pages(spec, listen=listen, prompt=4, new=9)


def test_a_wrong_model_is_refused_before_listening(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"browser runs only \.onnx files"):
        api.measure_pages(tmp_path / "m.gguf", listen="127.0.0.1:0", runtime="browser")


def test_options_of_other_ways_to_measure_are_refused(spec):
    for option in (["--runtime", "fake"], ["--remote", "a@b"], ["--sustained", "1m"]):
        done = CliRunner().invoke(app, ["measure", spec, "--listen", "127.0.0.1:0", *option])
        assert done.exit_code == 2


def test_machines_have_short_names():
    iphone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605 Version/18.5 Mobile Safari/604.1"
    expected = {
        ANDROID: "Linux, Android 10, K, Chrome 156",
        iphone: "iPhone, CPU iPhone OS 18_5 like Mac OS X, Safari 18",
        "strange": "unknown device",
    }
    assert {agent: Got(**GOT | {"agent": agent}).machine for agent in expected} == expected


@pytest.mark.parametrize(
    "answer",
    [
        {"seconds": [1e99] * 9},
        {"seconds": []},
        {"seconds": [0.1, 0.1]},
        {"seconds": [-1.0] * 9},
        {"output": {"type": "float32", "dims": [1, 1, 10**9], "data": ""}},
        {"output": {"type": "float32", "dims": [-1, -64], "data": "AAAA"}},
        {"output": {"type": "object", "dims": [0], "data": ""}},
        {"output": {"type": "float32", "dims": [1, 1, VOCAB], "data": base64.b64encode(b"\xff" * 4 * VOCAB).decode()}},
        {"more": 1},
    ],
)
def test_a_page_that_lies_is_an_error_and_nothing_is_stored(listening, answer):
    class Liar(Phone):
        def answer(self, command):
            return super().answer(command) | (answer if command["do"] == "generate" else {})

    address, results = listening(1)
    Liar(address, name="liar")
    measured, each = results()
    assert (measured, len(each)) == ([], 1)
    assert MeasurementStore().entries() == []


def test_a_qr_code_holds_the_address_if_segno_is_installed(monkeypatch):
    if importlib.util.find_spec("segno") is not None:
        assert len(pages.qr_code("http://192.0.2.7:8000/token/").splitlines()) > 10
    monkeypatch.setitem(sys.modules, "segno", None)
    assert pages.qr_code("http://192.0.2.7:8000/") == ""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(LACKS is not None, reason=f"browser: {LACKS}")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_browser_as_a_phone(listening):
    address, results = listening(1, real=True)
    browser = Chromium(f"{address}#a%20phone")
    (found,), _ = results()
    browser.close()
    assert found.device.startswith("a phone, ")
    assert found.peak_memory_bytes > 10_000_000
    assert found.steps_per_sample == 1
