"""Former failures as inputs of torture.py (traceback, hang, silent acceptance): commands and their files.

Data of tasks, tables to teach from and results of kits are in ``torture_data.py``.
"""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torture_inputs import LLAMA, NAN, Case

PLAN = ("plan", "gpt2", "--device", "l4", "--tp", "1", "--rate", "1/s", "--prompt", "64", "--new", "16")
SIMULATE = ("simulate", "gpt2", "--device", "l4", "--prompt", "64", "--new", "16")
DIGITS, LONG = "9" * 5_000, "9" * 400
ROW = {"arrival_s": 0, "prompt_tokens": 9, "new_tokens": 1}


def traces() -> Iterator[Case]:
    """Logs of requests; those with one row, or all at one moment, may be answered."""

    def line(**changes: Any) -> str:
        return json.dumps(ROW | changes)

    raw = '{"arrival_s": %s, "prompt_tokens": 9, "new_tokens": 1}'
    lines: dict[str, tuple[str, bool]] = {
        "time of 400 digits": (raw % LONG, False),
        "time of 5,000 digits": (raw % DIGITS, False),
        "one row": (line(), True),
        "60 rows at one moment": ("\n".join([line()] * 60), True),
        "true as time": (line(arrival_s=True), False),
        "true as tokens": (line(prompt_tokens=True), False),
        "a gap of 1e300 s": (f"{line()}\n{line(arrival_s=1e300)}", False),
        "a prefix above the prompt": (f"{line(prefix_tokens=90)}\n{line(arrival_s=1)}", False),
        "100,000 classes": ("\n".join(line(arrival_s=i / 100, **{"class": f"c{i}"}) for i in range(100_000)), True),
    }
    for name, (text, rows) in lines.items():
        for command in (PLAN[:6], SIMULATE[:4]):
            yield Case(
                name=f"reported {command[0]} trace: {name}", words=("t.jsonl",), rows=rows,
                arguments=(*command, "--trace", "t.jsonl"), files={"t.jsonl": text},
            )  # fmt: skip
    text = "arrival_s,prompt_tokens,new_tokens\n0,9,1,7\n1,9,1\n"
    yield Case(
        name="reported simulate trace: a CSV row that is too long", words=("t.csv",),
        arguments=(*SIMULATE[:4], "--trace", "t.csv"), files={"t.csv": text},
    )  # fmt: skip


def questions() -> Iterator[Case]:
    """Options and question files of plan, simulate and agent."""
    base = "model: gpt2\nrate: 2/s\ndevices: l4\n"
    twice = "classes:\n  - {name: a, share: 0.5}\n  - {name: a, share: 0.5}\n"
    files = {
        "no classes": (f"{base}classes: []\n", "classes"),
        "two classes of one name": (base + twice, "classes"),
        "model beside models": (f"{base}models: [gpt2]\n", "model"),
    }
    for name, (text, word) in files.items():
        yield Case(
            name=f"reported question: {name}", words=(word,), arguments=("plan", "q.yaml"), files={"q.yaml": text}
        )
    of_plan: tuple[tuple[str, tuple[str, ...]], ...] = (
        *(("price", ("--price", f"{given} USD/h")) for given in ("l4=-1", "lv4=1", "l4=0")),
        *(("device", ("--device", ",")), ("budget", ("--budget", "-3 USD/h"))),
        *(("folder", ("--html", "no/such/x.html")), ("folder", ("--out", "no/such/p.json"))),
    )
    for word, given in of_plan:
        yield Case(name=f"reported plan {' '.join(given)}", words=(word,), arguments=(*PLAN, *given))
    for given in (
        *("--think=-1s", "--think 1s", "--link 100GB/s", "--spread 1e9", "--burstiness 5", "--prefixes 1000000000000"),
        *("--drafted 4", "--draft gpt2", "--batching requests", "--dp 4", "--request-time 1e300s"),
        "--html no/such/x.html",
    ):
        option = given.split()[0].partition("=")[0].strip("-")
        words = (option, option.partition("-")[0], "folder" if "html" in option else option)
        arguments = (*SIMULATE, "--rate", "1/s", *given.split())
        drafted = option == "drafted"  # n-grams draft where no model is named, and the answer says so
        yield Case(name=f"reported simulate {given}", words=words, arguments=arguments, rows=drafted)
    part = "name: r\nbudget: 2 s\ndevice: l4\nparts:\n  - {name: act, time: %s, calls: %s}\n"
    for time, calls, word in (("-40 ms", "2", "time"), ("40 ms", str(10**30), "calls")):
        yield Case(
            name=f"reported agent time {time}, calls {calls:.4}", words=(word,), arguments=("agent", "a.yaml"),
            files={"a.yaml": part % (time, calls)},
        )  # fmt: skip


@functools.cache
def planned() -> dict[str, Any]:
    """A plan's file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "chipwise", *PLAN, "--out", f"{folder}/p.json"]
        subprocess.run(command, check=True, capture_output=True)
        found: dict[str, Any] = json.loads(Path(folder, "p.json").read_text())
        return found


GONE = object()


def plan_files() -> Iterator[Case]:
    """Damaged plan files, and impossible load tests."""
    readers = {
        "--resume": (*PLAN, "--out", "p.json", "--resume"),
        "check": ("plan", "check", "p.json", "--results", "r.json"),
    }
    damages: tuple[tuple[str, object], ...] = (
        *(("answer.question", value) for value in (None, [1], GONE)),
        *(("answer.options", value) for value in ("x", {"a": 1}, [None])),
        *(("known", value) for value in (GONE, [1], {"k": None}, {"k": {"x": "y"}}, {"k": {"n": NAN}}, {"k": {}})),
        ("answer.version", "DIGITS"),
    )
    test = json.dumps({"mean_ttft_ms": 20.0, "mean_tpot_ms": 5.0})
    for path, value in damages:
        data = copy.deepcopy(planned())
        *outer, last = path.split(".")
        place = data
        for name in outer:
            place = place[name]
        if value is GONE:
            place.pop(last, None)
        else:
            place[last] = value
        text = json.dumps(data).replace('"DIGITS"', DIGITS)
        for reader, command in readers.items():
            unread = (path.startswith("known") and reader != "--resume") or path == "answer.options"
            yield Case(
                name=f"reported plan file {reader} {path}={'gone' if value is GONE else repr(value)[:20]}", rows=unread,
                words=("p.json",), arguments=command, files={"p.json": text, "r.json": test},
            )  # fmt: skip
    whole = json.dumps(planned())
    for name, text in {
        "of 400 digits": f'{{"mean_ttft_ms": {LONG}}}',
        "of 5,000 digits": f'{{"mean_ttft_ms": {DIGITS}}}',
        "negative": '{"mean_ttft_ms": -5.0}',
        "zero": '{"mean_ttft_ms": 0}',
        "1e308": '{"mean_ttft_ms": 1e308}',
    }.items():
        yield Case(
            name=f"reported load test {name}", words=("r.json",), arguments=readers["check"],
            files={"p.json": whole, "r.json": text},
        )  # fmt: skip


def outputs() -> Iterator[Case]:
    """Full or ASCII-only standard output, looping links, missing folders."""
    estimate = ("estimate", "gpt2", "--device", "l4")
    for command in (estimate, (*estimate, "--json"), ("devices",)):
        name = f"reported full output: {' '.join(command)}"
        yield Case(name=name, words=("the disk is full",), arguments=command, out="/dev/full")
    yield Case(
        name="reported ascii output", words=(), rows=True, arguments=estimate, environment={"PYTHONIOENCODING": "ascii"}
    )
    loop = ("shrink", "loop", "--data", "d.txt", "--out", "o")
    yield Case(
        name="reported loop of links", words=("loop",), arguments=loop, files={"d.txt": "x"}, links={"loop": "loop"}
    )
    page = ("explain", "gpt2", "--device", "l4", "--html", "no/such/x.html")
    yield Case(name="reported page in no folder", words=("there is no folder",), arguments=page)
    yield Case(name="reported init of no kind", words=("init --list",), arguments=("init", "esp32"))
    yield Case(name="reported report of no run", words=("no run",), arguments=("report", "."))


def configs() -> Iterator[Case]:
    """Fields of config.json that were accepted with any value."""
    common = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    wav2vec2 = common | {"model_type": "wav2vec2", "vocab_size": 32, "num_conv_pos_embedding_groups": 4}
    wav2vec2 |= {"conv_dim": [32, 32], "conv_kernel": [10, 3], "conv_stride": [5, 2]}
    vit = common | {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_channels": 3}
    for base, field, value in (
        (LLAMA, "sliding_window", -5), (LLAMA, "sliding_window", "wide"), (LLAMA, "architectures", "x"),
        (wav2vec2, "conv_dim", []), (wav2vec2, "num_conv_pos_embedding_groups", 7), (vit, "id2label", "x"),
        (vit, "num_labels", 10**15),
    ):  # fmt: skip
        yield Case(
            name=f"reported {base['model_type']} {field}={value}", words=(field, "classes", "labels"),
            arguments=("estimate", "config.json", "--device", "l4"),
            files={"config.json": json.dumps({**base, field: value})},
        )  # fmt: skip


def reported() -> list[Case]:
    """All cases of this file."""
    makers = (traces, questions, plan_files, outputs, configs)
    return [case for make in makers for case in make()]
