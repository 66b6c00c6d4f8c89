"""Interrupted `quantize` and `shrink`: what Ctrl-C, a kill and a full disk cost, and whether the same result follows.

    taskset -c 1 nice python benchmarks/interruptions.py --each 8 --seed 1 --out interruptions.csv

A decoder of 2.2 M random parameters with a tokenizer trained here, one of 0.6 M for `shrink` and an ONNX graph of three
products are made in a temporary folder. Each command of :data:`COMMANDS` runs once without interruption. Then it is
struck at moments drawn with a fixed seed, in processor seconds since its start, by SIGINT (as Ctrl-C, to the command
alone) or SIGKILL; ``--resume`` goes on until the next strike, or to the end, and then a new run begins. A full disk is
a small tmpfs (this needs root on Linux), enlarged after each failure.

Checked: the exit code (130 after SIGINT, 1 after a full disk), one line that names ``--resume`` and no traceback; no
file beside the state folder, no process left; every answer in the state before a strike is there after it, unchanged
(JSON files leaf by leaf); at the end no temporary file. Where nothing is timed (``--device``), the files that are
written must equal those of the run without interruption byte for byte.

Columns: command, strike, at_s (processor seconds in its session), stage (the last one reported), exit, kept (numbers in
the state before the strike), repeated_s (processor seconds since the last step that was not reported again: the most
work that may be done twice; steps that are only read again are reported, too), verdict, message. Rows ``whole`` are
runs without interruption: repeated_s is their processor time, and kept the most bytes on the disk. Sessions start anew
with the imports, which are not counted as repeated.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from chipwise.deploy.export.hf import save_pretrained
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.weights import weight_shapes
from provenance import stamp

TEXT = Path(__file__).resolve().parents[1] / "docs"
CHIP = ("--device", "raspberry-pi-5")  # predicted: nothing is timed, so that results repeat exactly
COMMANDS: dict[str, tuple[str, ...]] = {
    "gguf": ("quantize", "../decoder", "--data", "../one.txt", "--data", "../two.txt", "--out", "m.gguf"),
    "gguf-device": ("quantize", "../decoder", "--data", "../one.txt", *CHIP, "--out", "m.gguf"),
    "onnx": ("quantize", "../graph.onnx", "--data", "../samples.npz", "--minutes", "0.05", "--out", "m.onnx"),
    "shrink": ("shrink", "../small", "--data", "../one.txt", "--steps", "30", "--out", "m"),
    "shrink-device": ("shrink", "../small", "--data", "../one.txt", "--steps", "30", *CHIP, "--out", "m"),
}
TRACED = """
import json, os, signal, psutil
signal.signal(signal.SIGINT, signal.default_int_handler)
from chipwise.cli import stages
def traced(self, stage, done, total):
    me = psutil.Process()
    spent = [sum(p.cpu_times()[:4]) for p in (me, *me.children(recursive=True))]
    with open(os.environ["TRACE"], "a") as log:
        log.write(json.dumps([sum(spent), stage, done, total]) + chr(10))
    print(stage, done, total)
stages.Progress.__call__ = traced
from chipwise.cli import main
main()
"""
SETTLE_S = 60.0  # on the clock, until a struck command and its processes must have ended
FULL = (0.1, 0.3, 0.5, 0.7, 0.85, 0.97)  # sizes of the disk, as shares of the most that a run takes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strike, or one whole run."""

    command: str
    strike: str
    at_s: float
    stage: str
    exit: int
    kept: int
    repeated_s: float
    verdict: str
    message: str


@dataclass(kw_only=True)
class Session:
    """One process of a command, from its start to its end."""

    trace: list[tuple[float, str, int]]  # processor seconds, stage and step
    cpu_s: float  # at the end, or at the strike
    code: int
    text: str
    struck: bool
    kept: dict[str, object]  # numbers and words in the state before the strike
    most_bytes: int

    @property
    def last(self) -> str:
        """The last line that was printed."""
        return next((line for line in reversed(self.text.splitlines()) if line.strip()), "")


def material(folder: Path) -> None:
    """Writes texts, models and samples."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.rglob("*.md")))
    for name, part in (("one", text[: len(text) // 2]), ("two", text[len(text) // 2 :])):
        (folder / f"{name}.txt").write_text(part, encoding="utf-8")
    for name, vocabulary, width, layers in (("decoder", 1024, 256, 2), ("small", 1024, 128, 2)):
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=letters, show_progress=False)
        made.train([str(folder / "one.txt")], trainer)
        made.save(str(folder / "tokenizer.json"))
        attention = Attention(heads=width // 64, kv_heads=max(1, width // 128), head_size=64)
        layer = Layer(attention=attention, ffn=FeedForward(width=4 * width))
        arch = ArchSpec(
            name=name, stem=Tokens(vocab_size=vocabulary), d_model=width, layers=(layer,) * layers, max_tokens=512
        )
        drawn = np.random.default_rng(0)
        weights = {
            each: np.ones(shape, np.float32)
            if len(shape) == 1
            else drawn.standard_normal(shape).astype(np.float32) / shape[1] ** 0.5
            for each, shape in weight_shapes(arch).items()
        }
        save_pretrained(arch, weights, folder / "tokenizer.json", folder / name)
    random_ = np.random.default_rng(0)
    nodes, stored, last = [], [], "x"
    for i in range(3):
        stored.append(numpy_helper.from_array(random_.normal(0, 0.05, (512, 512)).astype(np.float32), f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"h{i}"]),
            helper.make_node("Relu", [f"h{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 512]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "graph.onnx"))
    np.savez(folder / "samples.npz", x=random_.standard_normal((64, 512), np.float32))


def state_of(place: Path) -> dict[str, object]:
    """Every number and word in the JSON files of the states in ``place``, by file and position."""
    found: dict[str, object] = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict | list):
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                walk(f"{name}/{key}", each)
        else:
            found[name] = value

    for path in place.rglob("*.json"):
        if any(part == "state" or part.endswith(".state") for part in path.relative_to(place).parts):
            with suppress(OSError):
                walk(str(path.relative_to(place)), json.loads(path.read_text(encoding="utf-8")))
    return found


def bytes_in(place: Path) -> int:
    """Bytes of all files."""
    total = 0
    for path in place.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def run(name: str, place: Path, *, strike: signal.Signals | None = None, at_s: float = 0.0) -> Session:
    """Runs a command in ``place``, with ``--resume``, to its end or until it has taken ``at_s`` processor seconds."""
    trace, said = place.parent / f"{name}.trace", place.parent / f"{name}.out"
    trace.write_text("")
    with said.open("wb") as stream:
        child = psutil.Popen(
            [sys.executable, "-c", TRACED, *COMMANDS[name], "--resume"],
            cwd=place, stdout=stream, stderr=stream, env={**os.environ, "TRACE": str(trace)}, start_new_session=True,
        )  # fmt: skip
    cpu_s, most, struck, kept, workers = 0.0, 0, False, {}, []
    while child.poll() is None:
        with suppress(psutil.Error):
            workers = child.children(recursive=True)
            cpu_s = sum(sum(each.cpu_times()[:4]) for each in (child, *workers))
        if strike is not None and cpu_s >= at_s:
            child.send_signal(signal.SIGSTOP)  # so that the state is read as the strike finds it
            time.sleep(0.05)
            kept, struck = state_of(place), True
            child.send_signal(strike)
            child.send_signal(signal.SIGCONT)
            break
        most = max(most, bytes_in(place))
        time.sleep(0.2)
    try:
        code = child.wait(SETTLE_S)
    except psutil.TimeoutExpired:
        child.kill()
        code = 999
    _, alive = psutil.wait_procs(workers, timeout=SETTLE_S)
    for each in alive:
        each.kill()
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    return Session(
        trace=[(spent, stage, done) for spent, stage, done, _ in lines],
        cpu_s=cpu_s,
        code=998 if alive else code,
        text=said.read_text(encoding="utf-8", errors="replace"),
        struck=struck,
        kept=kept or state_of(place),
        most_bytes=most,
    )


def repeated_s(session: Session, later: list[Session]) -> float:
    """Processor seconds since the last step of ``session`` that none of the ``later`` sessions report again."""
    again = {(stage, done) for each in later for _, stage, done in each.trace}
    begun = session.trace[0][0] if session.trace else session.cpu_s  # before: imports
    for spent, stage, done in session.trace:
        if (stage, done) in again:
            break
        begun = spent
    return max(0.0, session.cpu_s - begun)


def results(place: Path) -> dict[str, str]:
    """Digests of the files of a finished run, without its state and what it says about times."""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and "state" not in path.relative_to(place).parts and path.name not in ("result.json",)
    }


def rubbish(place: Path, *, finished: bool) -> list[str]:
    """Files that must not be there: temporary ones after the end, results before it."""
    inside = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
    if finished:
        return [str(path) for path in inside if path.name.startswith(".") or path.parts[0].endswith(".state")]
    return [str(path) for path in inside if path.parts[0] in ("m.gguf", "m.onnx")]


def verdict(session: Session, place: Path, codes: tuple[int, ...], *, silent: bool) -> str:
    """``ok``, or what was wrong after a strike."""
    if session.code == 998:
        return "process left"
    if session.code not in codes:
        return f"exit {session.code}"
    if "Traceback" in session.text or "Exception ignored" in session.text:
        return "traceback"
    if not silent and session.trace and "--resume" not in session.last:
        return "unnamed"
    if found := rubbish(place, finished=False):
        return f"partial {', '.join(found)}"
    return "ok"


class Chain:
    """Sessions of one run after the other, and the rows that they give."""

    def __init__(self, name: str, place: Path, wanted: dict[str, str], column: str) -> None:
        self.name, self.place, self.wanted, self.column = name, place, wanted, column
        self.done: list[tuple[Session, str, str]] = []  # session, strike, verdict

    def add(self, session: Session, strike: str, codes: tuple[int, ...], *, silent: bool = False) -> None:
        """Notes a struck session; what earlier sessions knew must still be known."""
        found = verdict(session, self.place, codes, silent=silent)
        before = self.done[-1][0].kept if self.done else {}
        if lost := [key for key, value in before.items() if session.kept.get(key, value) != value]:
            found = f"lost {lost[0]}"
        self.done.append((session, strike, found))

    def rows(self, last: Session) -> Iterator[Row]:
        """The rows of this run, after its ``last`` session ended by itself."""
        end = "ok"
        if last.code:
            end = f"then exit {last.code}: {last.last}"
        elif found := rubbish(self.place, finished=True):
            end = f"left {', '.join(found)}"
        elif self.name.endswith("-device") and results(self.place) != self.wanted:
            end = "other result"
        sessions = [each for each, _, _ in self.done] + [last]
        for i, (session, strike, found) in enumerate(self.done):
            stage = "{1} {2}".format(*session.trace[-1]) if session.trace else "start"
            yield Row(
                command=self.name,
                strike=strike,
                at_s=round(session.cpu_s, 2),
                stage=stage,
                exit=session.code,
                kept=len(session.kept),
                repeated_s=round(repeated_s(session, sessions[i + 1 :]), 2),
                verdict=found if found != "ok" else end,
                message=session.last[:160],
            )


def strikes(name: str, room: Path, each: int, seed: int, whole: Session, wanted: dict[str, str]) -> Iterator[Row]:
    """Rows of ``each`` SIGINT and as many SIGKILL, in mixed order."""
    chance = random.Random(f"{name} {seed}")
    signals = [signal.SIGINT, signal.SIGKILL] * each
    chance.shuffle(signals)
    number = 0
    while signals:
        place = room / f"run{number}"
        place.mkdir()
        chain, number = Chain(name, place, wanted, "signal"), number + 1
        while signals:
            session = run(name, place, strike=signals[0], at_s=chance.uniform(1.0, 0.5 * whole.cpu_s))
            if not session.struck:
                break
            strike = signals.pop(0)
            codes = (130,) if strike == signal.SIGINT else (-9,)
            chain.add(session, strike.name, codes, silent=strike == signal.SIGKILL)
        else:
            session = run(name, place)
        yield from chain.rows(session)
        shutil.rmtree(place)


def full_disk(name: str, room: Path, whole: Session, wanted: dict[str, str]) -> Iterator[Row]:
    """Rows of a run on a disk that is too small, as often as there are sizes."""
    place = room / "disk"
    place.mkdir()
    sizes = [int(share * whole.most_bytes / 4096 + 1) * 4096 for share in FULL]
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={sizes[0]}", "tmpfs", str(place)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        print(f"{name}: no full disk, since no tmpfs can be mounted", file=sys.stderr)
        return
    try:
        chain = Chain(name, place, wanted, "disk")
        for size in [*sizes, 4 * whole.most_bytes]:
            subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
            session = run(name, place)
            if session.code == 0:
                break
            chain.add(session, "full disk", (1,))
        yield from chain.rows(session)
    finally:
        subprocess.run(["umount", str(place)], check=False)


def of_command(name: str, room: Path, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of one command: a whole run, strikes, and a full disk."""
    place = room / "whole"
    place.mkdir()
    whole = run(name, place)
    wanted = results(place)
    shutil.rmtree(place)
    yield Row(
        command=name,
        strike="whole",
        at_s=0.0,
        stage="",
        exit=whole.code,
        kept=whole.most_bytes,
        repeated_s=round(whole.cpu_s, 2),
        verdict="ok" if whole.code == 0 else "failed",
        message=whole.last[:160],
    )
    yield from strikes(name, room, options.each, options.seed, whole, wanted)
    if not options.no_disk:
        yield from full_disk(name, room, whole, wanted)


def main() -> int:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=8, help="SIGINT and SIGKILL, so many of each")
    parser.add_argument("--only", nargs="*", default=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-disk", action="store_true", help="no full disk")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: workers of killed commands are waited for here
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="interruptions") as folder:
        os.environ["CHIPWISE_HOME"] = str(Path(folder, "home"))
        material(Path(folder))
        for row in itertools.chain.from_iterable(of_command(name, Path(folder), options) for name in options.only):
            rows.append(row)
            print(*astuple(row), sep=" | ", flush=True)
            if options.out:
                with options.out.open("w", newline="", encoding="utf-8") as stream:
                    writer = csv.writer(stream, lineterminator="\n")
                    writer.writerow([each.name for each in fields(Row)])
                    writer.writerows(astuple(each) for each in rows)
                stamp(options.out)
    for name in options.only:
        for strike in ("SIGINT", "SIGKILL", "full disk"):
            found = [row for row in rows if (row.command, row.strike) == (name, strike)]
            lost = sorted(row.repeated_s for row in found) or [0.0]
            print(
                f"{name}, {strike}: {len(found)}, {sum(row.verdict != 'ok' for row in found)} not ok, repeated median "
                f"{lost[len(lost) // 2]:.1f} s, most {lost[-1]:.1f} s of processor time"
            )
    return int(any(row.verdict != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
