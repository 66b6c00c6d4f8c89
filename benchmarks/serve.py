"""``chipwise serve`` under many clients: lost streams, wrong answers, memory over time, and Ctrl-C.

python benchmarks/serve.py --out benchmarks/serve-2026-11-26.csv [--model FILE.gguf] [--client openai]

The command runs in a process of its own. Each of 16 clients sends its requests one after another: streams, whole
answers, and every tenth request leaves in the middle of its stream. Answers to one prompt must all be the same, as the
temperature is 0. Memory is the resident set of the server with its child, after 100 requests and at the end. Without
``--model`` a decoder with random weights (128 x 4, 1,024 tokens) runs in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

import provenance
from chipwise.core.csvfile import write_rows

COLUMNS = (
    *("model", "runtime", "client", "requests", "clients", "slots", "finished", "left", "lost", "different"),
    *("seconds", "mb_after_100", "mb_at_end", "growth", "exit_code"),
)
PROMPTS = [f"On day {number} the fever" for number in range(8)]
TOKENS, WATCHED = 24, 100


def random_model(folder: Path) -> Path:
    """An exported decoder with random weights and a tokenizer."""
    from chipwise.deploy.export.hf import save_pretrained
    from chipwise.deploy.export.onnx import random_weights
    from chipwise.deploy.export.sources import Source, write_onnx
    from chipwise.model.arch.arch import uniform
    from chipwise.model.arch.design import Design
    from chipwise.training.data.tokenizer import train_tokenizer

    arch = uniform(vocab_size=1024, d_model=128, depth=4, heads=4, ffn_width=512, max_tokens=256, name="random")
    text = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[1].glob("docs/**/*.md"))]
    train_tokenizer(text, arch.vocab_size).save(str(folder / "tokens.json"))
    save_pretrained(arch, random_weights(arch, seed=1), folder / "tokens.json", folder / "hf")
    (folder / "onnx").mkdir()
    write_onnx(Source.read(folder / "hf"), Design(arch=arch), folder / "onnx")
    return folder / "onnx"


class Load:
    """The clients, and what they saw."""

    def __init__(self, url: str, model: str, process: psutil.Process, client: str) -> None:
        self.url, self.model, self.process, self.client = url, model, process, client
        self.lock, self.done, self.mb_after_100 = threading.Lock(), 0, 0.0
        self.seen: Counter[str] = Counter()
        self.texts: dict[str, set[str]] = {prompt: set() for prompt in PROMPTS}

    def mb(self) -> float:
        """Resident memory of the server and its children."""
        return sum(each.memory_info().rss for each in (self.process, *self.process.children(recursive=True))) / 1e6

    def one(self, number: int) -> None:
        """Sends one request and notes how it ended."""
        prompt, stream, leaves = PROMPTS[number % len(PROMPTS)], number % 2 == 0, number % 10 == 4
        try:
            text = (self._openai if self.client == "openai" else self._http)(prompt, stream, leaves)
        except Exception as error:
            print(f"request {number}: {type(error).__name__}: {error}", file=sys.stderr)
            text, leaves = None, False
        with self.lock:
            self.seen["left" if leaves else "lost" if text is None else "finished"] += 1
            if text is not None and not leaves:
                self.texts[prompt].add(text)
            self.done += 1
            if self.done == WATCHED:
                self.mb_after_100 = self.mb()

    def _http(self, prompt: str, stream: bool, leaves: bool) -> str | None:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=300)
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if leaves:
            reply.readline()
            connection.close()
            return None
        held = reply.read().decode()
        connection.close()
        if not stream:
            return json.loads(held)["choices"][0]["text"] if reply.status == 200 else None
        *events, end, _ = held.split("\n\n")
        found = [json.loads(event.removeprefix("data: ")) for event in events]
        return "".join(event["choices"][0]["text"] for event in found) if end == "data: [DONE]" else None

    def _openai(self, prompt: str, stream: bool, leaves: bool) -> str | None:
        import openai

        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            asked = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
            if not stream:
                return client.completions.create(**asked).choices[0].text
            parts, text, finish = client.completions.create(stream=True, **asked), "", None
            for part in parts:
                text, finish = text + part.choices[0].text, part.choices[0].finish_reason
                if leaves:
                    parts.close()
                    return None
            return text if finish is not None else None


def main() -> None:
    """Starts the server, sends the requests, and writes a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model for chipwise serve")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--client", choices=("http", "openai"), default="http")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file; a row is added")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    with tempfile.TemporaryDirectory() as room:
        model = given.model or str(random_model(Path(room)))
        command = [sys.executable, "-m", "chipwise", "serve", model, "--port", "0", "--slots", str(given.slots)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = next(
            found[1] for line in server.stdout or () if (found := re.search(r"talk to it: (http://\S+:\d+)", line))
        )
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.request("GET", "/status")
        about = json.load(connection.getresponse())
        connection.close()
        load = Load(url, about["model"], psutil.Process(server.pid), given.client)
        started = time.perf_counter()
        with ThreadPoolExecutor(given.clients) as clients:
            list(clients.map(load.one, range(given.requests)))
        seconds, mb_at_end = time.perf_counter() - started, load.mb()
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    row = {
        **{"model": about["model"], "runtime": f"{about['runtime']} {about['version']}", "client": given.client},
        **{"requests": given.requests, "clients": given.clients, "slots": given.slots},
        **{name: load.seen[name] for name in ("finished", "left", "lost")},
        "different": sum(len(texts) > 1 for texts in load.texts.values()),
        **{"seconds": f"{seconds:.1f}", "mb_after_100": f"{load.mb_after_100:.1f}", "mb_at_end": f"{mb_at_end:.1f}"},
        **{"growth": f"{mb_at_end / load.mb_after_100:.4f}", "exit_code": server.returncode},
    }
    earlier = []
    if given.out.exists():
        import csv

        with given.out.open(newline="", encoding="utf-8") as stream:
            earlier = list(csv.DictReader(stream))
    write_rows(given.out, [*earlier, row], list(dict.fromkeys([*COLUMNS, *provenance.COLUMNS])))
    provenance.stamp(given.out)
    print(row)


if __name__ == "__main__":
    main()
