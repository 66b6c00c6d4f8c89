"""Runs a folder of ``chipwise export --to transformers.js`` by transformers.js in headless Chromium, on one thread."""

from __future__ import annotations

import json
import queue
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes.web.chromium import Chromium
from chipwise.errors import MeasurementError

WAIT_S = 600.0
PAGE = """<!doctype html><script type="module">
const say = (body, kind) => fetch("/" + kind, {method: "POST", body});
try {
  const {AutoModelForCausalLM, Tensor, env} = await import("/npm/@huggingface/transformers/dist/transformers.min.js");
  const {ids, prompt} = await (await fetch("/task")).json();
  Object.assign(env, {allowRemoteModels: false, allowLocalModels: true, localModelPath: "/", useBrowserCache: false});
  env.backends.onnx.wasm.wasmPaths = "/npm/onnxruntime-web/dist/";
  env.backends.onnx.wasm.numThreads = 1;
  const model = await AutoModelForCausalLM.from_pretrained("model", {device: "wasm"});
  const whole = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  let past = null, seen = 0;
  for (const part of [ids.slice(0, prompt), ...ids.slice(prompt).map((each) => [each])]) {
    seen += part.length;
    const given = {input_ids: whole(part), attention_mask: whole(Array(seen).fill(1)), past_key_values: past};
    const made = await model(given);
    const kept = Object.entries(made).filter(([name]) => name.startsWith("present"));
    past = Object.fromEntries(kept.map(([name, value]) => [name.replace("present", "past_key_values"), value]));
    await say(Float32Array.from(made.logits.data.slice(-made.logits.dims.at(-1))), "logits");
  }
  await say("", "done");
} catch (error) {
  await say(String(error && error.stack || error), "failed");
}
</script>"""


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: object, npm: Path, model: Path, task: dict, heard: queue.SimpleQueue, **how: object):
        self.roots, self.task, self.heard = {"npm": npm / "node_modules", "model": model}, task, heard
        super().__init__(*args, **how)

    def log_message(self, *_: object) -> None:
        pass

    def translate_path(self, path: str) -> str:
        kind, _, rest = path.partition("?")[0].lstrip("/").partition("/")
        return str(self.roots.get(kind, Path("/nowhere")) / rest)

    def do_GET(self) -> None:
        told = {"/": ("text/html", PAGE), "/task": ("application/json", json.dumps(self.task))}
        if self.path not in told:
            super().do_GET()
            return
        kind, body = told[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.heard.put((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


def answers(folder: Path, npm: Path, ids: AnyArray, steps: int) -> tuple[str, AnyArray]:
    """The version of transformers.js, and logits (steps + 1, vocab) of a prompt and the steps after it.

    Raises:
        MeasurementError: The page failed or was silent.
    """
    heard: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
    task = {"ids": ids[0].tolist(), "prompt": ids.shape[1] - steps}
    handler = partial(_Handler, npm=npm.absolute(), model=folder.absolute(), task=task, heard=heard)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Chromium(f"http://127.0.0.1:{server.server_port}/")
    rows = []
    try:
        while (event := heard.get(timeout=WAIT_S))[0] != "/done":
            if event[0] == "/failed":
                raise MeasurementError(f"transformers.js: {event[1].decode(errors='replace')[:300]}")
            rows.append(np.frombuffer(event[1], np.float32))
    except queue.Empty:
        raise MeasurementError(f"transformers.js did not answer within {WAIT_S:g} s") from None
    finally:
        browser.close()
        server.shutdown()
    about = json.loads((npm / "node_modules" / "@huggingface" / "transformers" / "package.json").read_text())
    return about["version"], np.stack(rows)
