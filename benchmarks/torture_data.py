"""Former failures as inputs of torture.py (traceback, hang, silent acceptance): data of tasks, tables, kit results."""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import math
import struct
import tempfile
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from torture_inputs import FIFO, ROOT, Case

SEARCH = ("search", "run.yaml", "--out", "run")
ESCAPE = "a\x1b[2Jb"


def task(name: str, data: dict[str, Any]) -> str:
    """The example's run file with other data."""
    held = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    return yaml.dump(held | {"data": data})


def png(side: int) -> bytes:
    """A PNG that states ``side`` by ``side`` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(side, 64) * (1 + (side + 7) // 8)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def npz(**arrays: Any) -> bytes:
    """The content of an ``.npz`` file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **{name: np.asarray(value) for name, value in arrays.items()})
    return stream.getvalue()


def parquet(**columns: Any) -> bytes:
    """The content of a Parquet file."""
    import pyarrow
    from pyarrow import parquet as files

    sink = pyarrow.BufferOutputStream()
    files.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue())


def images() -> Iterator[Case]:
    """Images in folders, arrays and tables."""

    def case(name: str, data: dict[str, Any], files: dict[str, str | bytes], word: str) -> Case:
        run = {"run.yaml": task("vision", data)}
        return Case(name=f"reported images: {name}", words=(word,), arguments=SEARCH, files={**run, **files})

    folder = {"source": "folder", "path": "pics"}
    ten = {f"pics/{i}/x.png": png(30) for i in range(1, 10)}
    yield case("a bomb in a folder", folder, {**ten, "pics/0/x.png": png(30_000)}, "x.png")
    yield case("12,000 pixels square", folder, {**ten, "pics/0/x.png": png(12_000)}, "x.png")
    yield case("a pipe", folder, {**ten, "pics/0/x.png": FIFO}, "x.png")
    blank, labels = np.zeros((50, 8, 8), np.uint8), np.arange(50) % 10
    arrays: dict[str, dict[str, Any]] = {
        "labels of two axes": {"images": blank, "labels": np.zeros((50, 2), int)},
        "none": {"images": blank[:0], "labels": labels[:0]},
        "0 by 0 pixels": {"images": np.zeros((50, 0, 0), np.uint8), "labels": labels},
        "seven channels": {"images": np.zeros((50, 8, 8, 7), np.uint8), "labels": labels},
        "two classes of one name": {"images": blank, "labels": labels % 2, "classes": ["cat", "cat"]},
        "330 MB of zeros": {"images": np.zeros((330, 1000, 1000), np.uint8), "labels": np.arange(330) % 10},
    }
    for name, held in arrays.items():
        yield case(name, {"source": "numpy", "path": "set.npz"}, {"set.npz": npz(**held)}, "set.npz")
    head = b"\x00\x00\x08\x03" + struct.pack(">3I", 3_600_000, 1_000, 1)
    packed = {"source": "idx", "path": "x.gz", "labels": "y.gz"}
    for name, start in (("IDX that states 3.6 GB", head), ("IDX of zeros", b"")):
        content = gzip.compress(start + bytes(2**24))
        yield case(name, packed, {"x.gz": content, "y.gz": gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x00")}, "x.gz")
    tables = {
        "a bomb in a table": parquet(image=[png(30_000)] * 2, label=[0, 1]),
        "lists as labels": parquet(image=[png(30)] * 2, label=[[0], [1]]),
    }
    for name, content in tables.items():
        yield case(name, {"source": "parquet", "path": "t.parquet"}, {"t.parquet": content}, "t.parquet")
    lines: dict[str, tuple[str, str | bytes]] = {
        "deep": ("q.jsonl", "[" * 100_000),
        "5,000 digits": ("q.jsonl", '{"image": %s}' % ("9" * 5_000)),
        "a bomb": ("q.jsonl", '{"image": "x.png", "question": "what?", "answer": "no"}'),
        "random Parquet": ("q.parquet", np.random.default_rng(0).bytes(4_000)),
    }
    for name, (file, content) in lines.items():
        run = task("multimodal", {"source": "files", "path": file})
        yield Case(
            name=f"reported questions: {name}", words=(file, "x.png"), arguments=SEARCH,
            files={"run.yaml": run, file: content, "x.png": png(30_000)},
        )  # fmt: skip
    pipe = {"run.yaml": task("multimodal", {"source": "files", "path": "q.jsonl"}), "x.png": FIFO}
    yield Case(
        name="reported questions: a pipe", words=("x.png",), arguments=SEARCH,
        files={**pipe, "q.jsonl": '{"image": "x.png", "question": "what?", "answer": "no"}'},
    )  # fmt: skip


def sound(place: int = 0, content: bytes = b"", value: int = 1_000) -> bytes:
    """Half a second of WAV, with ``content`` written over its header."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.full(8_000, value, "<i2").tobytes())
    held = bytearray(stream.getvalue())
    held[place : place + len(content)] = content
    return bytes(held)


def signals() -> Iterator[Case]:
    """Recordings, series and clicks."""
    waves = {
        "rate 0": sound(24, struct.pack("<I", 0)), "rate 1 Hz": sound(24, struct.pack("<I", 1)),
        "rate 4294967295": sound(24, b"\xff" * 4), "7 bits": sound(34, struct.pack("<H", 7)),
        "data of 1 GB": sound(40, struct.pack("<I", 2**30)), "silence": sound(value=0), "empty": b"",
    }  # fmt: skip
    for name, content in waves.items():
        files: dict[str, str | bytes] = {f"words/{word}/{i}.wav": content for word in range(20) for i in range(6)}
        run = task("speech", {"source": "folder", "path": "words"})
        yield Case(
            name=f"reported WAV: {name}", words=(".wav", "silent"), arguments=SEARCH, files={"run.yaml": run, **files}
        )
    yield Case(
        name="reported held_out: .nan", words=("data.held_out",), arguments=SEARCH,
        files={"run.yaml": task("speech", {"held_out": math.nan})},
    )  # fmt: skip
    for name, values in (("1e308", [1e308, -1e308]), ("constant", [3.0, 3.0])):
        text = "x\n" + "\n".join(map(repr, values * 300))
        yield Case(
            name=f"reported series: {name}", words=("series",), arguments=SEARCH,
            files={"run.yaml": task("series", {"paths": ["s.csv"]}), "s.csv": text},
        )  # fmt: skip
    clicks = {"source": "parquet", "path": "c.parquet", "user": "u", "item": "i", "time": "t", "tags": "g"}
    content = parquet(u=[1, 1], i=[5, 6], t=[1.0, 2.0], g=[7, 8])
    yield Case(
        name="reported clicks: whole numbers as tags", words=("users", "items", "histories", "people", "interactions"),
        arguments=SEARCH, files={"run.yaml": task("ranking", clicks), "c.parquet": content},
    )  # fmt: skip


def teaching() -> Iterator[Case]:
    """Tables to learn a machine from."""
    teach = ("teach", "box", "--from", "t.csv", "--base", "raspberry-pi-4", "--dry-run")
    rows = {
        "1e300 ms": ("model,tpot_ms\ngpt2,1e300\n", "tpot"),
        "a misspelt column": ("model,tpot_ms,bathc\ngpt2,300,4\n", "bathc"),
        "a long row": ("model,tpot_ms\ngpt2,300,4\n", "columns"),
        "3 heads of 64": ("d_model,layers,heads,tpot_ms\n64,2,3,1\n", "heads"),
        "64.5 wide": ("d_model,layers,heads,tpot_ms\n64.5,2,4,1\n", "d_model"),
        "2.2 layers": ("d_model,layers,heads,tpot_ms\n64,2.2,4,1\n", "layers"),
        "1,000,000 rows": ("model,tpot_ms\n" + "gpt2,300\n" * 1_000_000, "t.csv"),
    }
    for name, (text, word) in rows.items():
        yield Case(name=f"reported teach: {name}", words=(word,), arguments=teach, files={"t.csv": text})
    again = ("--from", "t.csv", "--base", "raspberry-pi-4")
    files: dict[str, str | bytes] = {"t.csv": "model,tpot_ms\ngpt2,3000\n"}
    arguments = ("teach", "box--add", *again, "--add")
    yield Case(name="reported teach: --add to nothing", words=("--add",), arguments=arguments, files=files)
    chance = np.random.default_rng(0)
    head, equal = "d_model,layers,heads,tpot_ms\n", "512,8,8,300\n"
    drawn = [
        (64 * int(w), int(d)) for w, d in zip(chance.integers(2, 16, 400), chance.integers(1, 24, 400), strict=True)
    ]
    text = head + "".join(f"{w},{d},{w // 64},{w * w * d / 2e4:.3f}\n" for w, d in drawn)
    slow = {"400 rows": text, "200 equal rows": head + equal * 200, "1,000 equal rows": head + equal * 1_000}
    for name, content in slow.items():
        yield Case(name=f"reported teach: {name}", words=(), rows=True, arguments=teach, files={"t.csv": content})


@functools.cache
def results() -> str:
    """Results of a kit's script, for a kit that was packed here."""
    import chipwise
    from chipwise.model.arch import io as spec_io
    from chipwise.model.arch.arch import uniform

    arch = uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=32, max_tokens=32, name="tiny")
    with tempfile.TemporaryDirectory() as name:
        spec_io.save(arch, Path(name, "tiny.json"))
        folder = chipwise.kit(Path(name, "tiny.json"), out=Path(name, "kit"), prompt=5, new=4).folder
        kit = json.loads((folder / "kit.json").read_text())
    times = {name: [1e-3, 2e-3, 3e-3] for name in ("ttft_s", "tpot_s", "ttft_cpu_s", "tpot_cpu_s")}
    one = times | {"cpu_s": 0.1, "wall_s": 0.1, "peak_memory_bytes": 10**7, "energy_j": None, "readings": {"lost": 0.0}}
    one |= {"facts": {}, "machine": "Board", "runtime_version": "1", "cpus": [0]}
    measured = [{"file": item["file"], "sha256": item["sha256"], "rounds": [one]} for item in kit["models"]]
    machine = {"name": "Board", "cpu": "Board", "cores": 4, "memory_bytes": 2**32}
    head = {"schema": "chipwise.kit_results/1", "created": "2026-01-02T03:04:05Z", "complete": True, "device": None}
    return json.dumps(head | {"machine": machine, "threads": 4, "kit": kit, "measured": measured})


ROUND, MODEL = "measured.0.rounds.0", "kit.models.0"
TAMPERED: tuple[tuple[str, object], ...] = (
    *(
        (f"{MODEL}.weights", "int4"),
        (f"{MODEL}.design", "0" * 16),
        (f"{MODEL}.arch", None),
        (f"{MODEL}.runtime", "zzz"),
    ),
    *(
        (f"{MODEL}.runtime", "zzz"),
        ("kit.workload.prompt_tokens", 6),
        (f"{ROUND}.ttft_s", [1e308]),
        (f"{ROUND}.tpot_s", [1e-300]),
    ),
    *((f"{ROUND}.tpot_s", []), (f"{ROUND}.wall_s", 0), (f"{ROUND}.wall_s", -1), (f"{ROUND}.temperature_c", 1e9)),
    *((f"{ROUND}.clock_hz_before", -1.0), (f"{ROUND}.peak_memory_bytes", -5), (f"{ROUND}.cpus", [-1])),
    *((f"{ROUND}.machine", ESCAPE), ("machine.cores", -4), ("machine.memory_bytes", -1), ("machine.name", "")),
    *(("machine.name", "x" * 10_000), ("machine.name", ESCAPE), ("created", "yesterday"), ("device", ESCAPE)),
)


def kits() -> Iterator[Case]:
    """Results that were changed by hand, and files that cannot be packed."""
    for path, value in TAMPERED:
        held: Any = copy.deepcopy(json.loads(results()))
        place, (*outer, last) = held, path.split(".")
        for name in outer:
            place = place[int(name)] if name.isdecimal() else place[name]
        place[last] = value
        yield Case(
            name=f"reported results {path}={value!r:.20}", words=(last, "kit"), files={"r.json": json.dumps(held)},
            arguments=("measurements", "import", "r.json"),
        )  # fmt: skip
    yield Case(name="reported kit of a text", words=("x.onnx",), arguments=("kit", "x.onnx"), files={"x.onnx": "hello"})
    yield Case(
        name="reported kit in a folder with other files", words=("other files",), files={"used/mine.tex": "x"},
        arguments=("kit", "gpt2", "--out", "used"),
    )  # fmt: skip


def data_cases() -> list[Case]:
    """All cases of this file."""
    return [case for make in (images, signals, teaching, kits) for case in make()]
