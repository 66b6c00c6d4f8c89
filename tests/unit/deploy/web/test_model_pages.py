"""The page in a winner's folder, in a real, headless Chromium: its tokens and its text are those of native runtimes."""

from __future__ import annotations

import functools
import http.server
import json
import queue
import threading
from dataclasses import asdict
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("onnx", reason="exports the model: pip install 'chipwise[search]'")

from chipwise.deploy.calibrate.random_models import random_classifiers, random_rankers
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.runtimes import missing
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime, OnnxRuntimeSession
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.deploy.runtimes.web.engines import LLAMA_WEB, ORT_WEB
from chipwise.deploy.runtimes.web.packages import FETCH, PACKAGES
from chipwise.deploy.serving.engine import CHAT_PAGE, Promise
from chipwise.deploy.serving.web_page import write_page
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.training.data.tokenizer import train_tokenizer

LACKS = missing("browser") or (
    None if all(each.kept for each in PACKAGES) else f"not fetched from npm's package index; do so with: {FETCH}"
)
VOCAB, CONTEXT, WAIT_S = 320, 48, 120
DESIGN = Design(
    arch=uniform(vocab_size=VOCAB, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=CONTEXT)
)
TEXTS = (
    "The heart's valves, they've  two leaves.\n\n  Don't   ask 12345 times!",
    "Größe über 37,5 °C — naïve 漢字かな 🫀🫁 \u00a0\u2003x\ufeffy \tend ",
    "before<|endoftext|>after",
    " ",
    "",
)
PROMISE = Promise(tpot_s=2e-3, low_s=1e-3, high_s=4e-3, of="browser, 1 thread")
CHECK = """<!doctype html><iframe src="index.html"></iframe><script type="module">
import { Tokenizer } from "./web/tokenizer.js";
const post = (found) => fetch("/", { method: "POST", body: JSON.stringify(found) });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
try {
  const { texts, prompt } = await (await fetch("asked.json")).json();
  const tokenizer = new Tokenizer(await (await fetch("tokenizer.json")).json());
  const tokens = texts.map((text) => tokenizer.encode(text));
  const back = tokens.map((ids) => ids.map(tokenizer.decoder()).join(""));
  const frame = document.querySelector("iframe");
  while (!frame.contentWindow.engine) await pause(20);
  const page = frame.contentDocument, answered = [];
  const how = { prompt, max_tokens: 1000, temperature: 0, top_p: 1 };
  for await (const piece of frame.contentWindow.engine.answer(how)) answered.push(piece);
  while (!page.getElementById("about").textContent.includes("promised")) await pause(20);
  page.getElementById("text").value = prompt;
  page.getElementById("form").requestSubmit();
  while (!page.querySelector(".speed")?.textContent.startsWith("measured")) await pause(20);
  while (page.getElementById("send").textContent !== "Send") await pause(20);
  const shown = Object.fromEntries(["about", "name", "log"].map((id) => [id, page.getElementById(id).textContent]));
  await post({ tokens, back, answered, shown });
} catch (error) {
  await post({ error: String(error) });
}
</script>"""

CLASSIFY = """<!doctype html><iframe src="index.html"></iframe><script type="module">
const post = (found) => fetch("/", { method: "POST", body: JSON.stringify(found) });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
try {
  const { size } = await (await fetch("asked.json")).json();
  const pixels = new ImageData(size, size);
  pixels.data.forEach((_, i) => { pixels.data[i] = i % 4 === 3 ? 255 : (37 * (i >> 2) + 50 * (i % 4)) % 256; });
  const frame = document.querySelector("iframe");
  while (!frame.contentWindow.classify) await pause(20);
  const classes = await frame.contentWindow.classify(await createImageBitmap(pixels));
  const shown = Object.fromEntries(["about", "answer", "speed"].map(
    (id) => [id, frame.contentDocument.getElementById(id).textContent]));
  await post({ classes, shown });
} catch (error) {
  await post({ error: String(error) });
}
</script>"""

CHAT = """<!doctype html><iframe src="index.html"></iframe><script type="module">
const post = (found) => fetch("/", { method: "POST", body: JSON.stringify(found) });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
try {
  const page = () => document.querySelector("iframe").contentDocument;
  while (!page().getElementById("about")?.textContent.includes("promised")) await pause(20);
  page().getElementById("text").value = "once";
  page().getElementById("form").requestSubmit();
  while (!page().querySelector(".speed")?.textContent.startsWith("measured")) await pause(20);
  while (page().getElementById("send").textContent !== "Send") await pause(20);
  await post({ log: page().getElementById("log").textContent });
} catch (error) {
  await post({ error: String(error) });
}
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    room = tmp_path_factory.mktemp("winner")
    export_for("browser", DESIGN, room)
    words = ["The heart has valves and the lungs have lobes; they're 12 times the size. "] * 3 + list(TEXTS[:2])
    train_tokenizer([*words, "abcdefghijklmnopqrstuvwxyz the then there"], VOCAB).save(str(room / "tokenizer.json"))
    return room


class _Handler(http.server.SimpleHTTPRequestHandler):
    """A static server, as ``python -m http.server``, that also takes what the page found."""

    found: queue.SimpleQueue = queue.SimpleQueue()

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args) -> None:
        pass


class _Api(_Handler):
    """Answers of OpenAI's API besides."""

    asked: ClassVar[list] = []

    def do_POST(self) -> None:
        if not self.path.startswith("/v1/"):
            super().do_POST()
            return
        self.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        pieces = [
            {"delta": {"content": part}} if "chat" in self.path else {"text": part} for part in (" upon", " a time")
        ]
        chunks = [{"choices": [piece], "timings": {"predicted_per_token_ms": 2.5}} for piece in pieces]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def visited(folder, handler: type = _Handler) -> dict:
    """What the page ``check.html`` found in the folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Chromium(f"http://127.0.0.1:{server.server_port}/check.html")
    try:
        return _Handler.found.get(timeout=WAIT_S)
    finally:
        browser.close()
        server.shutdown()
        server.server_close()


def test_other_models_get_no_page(tmp_path):
    design = random_rankers(1, seed=1)[0]
    export_for("browser", Design(arch=design.arch), tmp_path)
    write_page(tmp_path, threads=1, promise=None)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


in_a_browser = pytest.mark.skipif(LACKS is not None, reason=f"browser: {LACKS}")


@pytest.mark.browser
@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("number", [0, 1])
def test_the_page_of_a_classifier_gives_the_shares_of_the_native_runtime(tmp_path, number):
    design = Design(arch=random_classifiers(2, seed=4)[number].arch)
    channels, size = design.arch.stem.channels, design.arch.stem.image_size
    labels, mean, std = [f"class {i}" for i in range(design.arch.outputs)], [0.3, 0.4, 0.5], [0.2, 0.25, 0.3]
    export_for("browser", design, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))
    processor = {"size": {"height": size, "width": size}, "image_mean": mean[:channels], "image_std": std[:channels]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    write_page(tmp_path, threads=1, promise=PROMISE)
    (tmp_path / "check.html").write_text(CLASSIFY)
    (tmp_path / "asked.json").write_text(json.dumps({"size": size}))
    found = visited(tmp_path)
    assert "error" not in found, found
    place = np.arange(size * size).reshape(size, size)
    rgb = np.stack([(37 * place + 50 * c) % 256 for c in range(3)]).astype(np.float64)
    seen = rgb if channels == 3 else np.tensordot([0.299, 0.587, 0.114], rgb, 1)[None]
    given = (seen / 255 - np.array(mean[:channels])[:, None, None]) / np.array(std[:channels])[:, None, None]
    logits = (
        OnnxRuntime()
        .open(tmp_path / "model.onnx", capacity=1, batch=1, threads=1, options={})
        .prefill(given[None].astype(np.float32))[0]
    )
    shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert {each["label"]: each["share"] for each in found["classes"]} == pytest.approx(
        dict(zip(labels, map(float, shares), strict=True)), abs=1e-4
    )
    assert found["shown"]["answer"].startswith(f"{labels[int(shares.argmax())]}: ")
    assert found["shown"]["about"].endswith("promised 2 ms an image (predicted, 1 ms to 4 ms; browser, 1 thread)")
    assert found["shown"]["speed"].startswith("measured ")


@pytest.mark.browser
@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("chats", [False, True])
def test_the_chat_page_streams_from_the_api_of_its_server(tmp_path, chats):
    (tmp_path / "index.html").write_bytes(CHAT_PAGE.read_bytes())
    (tmp_path / "check.html").write_text(CHAT)
    about = {"model": "m", "runtime": "onnxruntime", "version": "1", "context": 9, "chats": chats}
    (tmp_path / "status").write_text(json.dumps({**about, "promise": asdict(PROMISE)}))
    shown = visited(tmp_path, _Api).get("log")
    promised = "promised 500 tokens/s (predicted 2 ms a token, 1 ms to 4 ms; browser, 1 thread)"
    given = "" if chats else "once"  # without a template the answer continues the text
    assert shown == f"once{given} upon a timemeasured 400 tokens/s (2.5 ms a token) · {promised}"
    path, asked = _Api.asked[-1]
    assert path == ("/v1/chat/completions" if chats else "/v1/completions")
    assert asked["stream"]
    assert ("messages" in asked) == chats


@pytest.mark.browser
@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("engine", [ORT_WEB, LLAMA_WEB], ids=lambda engine: engine.name)
def test_the_page_of_a_folder_answers_as_the_native_runtime(folder, engine):
    from tokenizers import Tokenizer

    if engine is LLAMA_WEB:
        pytest.importorskip("gguf", reason="writes the model: pip install 'chipwise[gguf]'")
        export_for("wllama", DESIGN, folder)
    write_page(folder, engine=engine, threads=1, promise=PROMISE)
    (folder / "check.html").write_text(CHECK)
    (folder / "asked.json").write_text(json.dumps({"texts": TEXTS, "prompt": TEXTS[0][:20]}))
    found = visited(folder)
    assert "error" not in found, found
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert found["tokens"] == [tokenizer.encode(text).ids for text in TEXTS]
    assert found["back"] == [text.replace("<|endoftext|>", "") for text in TEXTS]
    ids = tokenizer.encode(TEXTS[0][:20]).ids
    session = OnnxRuntimeSession(folder / "model.onnx", capacity=CONTEXT)
    logits, wanted = session.prefill(np.array([ids])), []
    while len(ids) + len(wanted) < CONTEXT and (token := int(logits[0].argmax())) != 0:
        wanted.append(token)
        if len(ids) + len(wanted) < CONTEXT:
            logits = session.decode(np.array([[token]]))
    assert [piece["token"] for piece in found["answered"]] == wanted
    assert all(piece["step_s"] > 0 for piece in found["answered"][1:])
    assert found["shown"]["name"] == DESIGN.arch.name
    assert "promised 500 tokens/s (predicted 2 ms a token, 1 ms to 4 ms; browser, 1 thread)" in found["shown"]["about"]
    assert "measured" in found["shown"]["log"]


def test_a_tokenizer_of_words_is_refused(folder, tmp_path):
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    held["pre_tokenizer"] = {"type": "Whitespace"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(Unsupported, match="split"):
        write_page(tmp_path, threads=1, promise=None)
    assert not (tmp_path / "index.html").exists()
