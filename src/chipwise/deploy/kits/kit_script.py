"""Measures the models of a kit on the machine it runs on, and writes one JSON file that chipwise imports.

    python3 kit.py              measures every model, writes kit-results.json
    python3 kit.py --help       all options

It needs only Python 3.9 or newer and the runtime: the package onnxruntime for .onnx files; for .gguf files the
package llama-cpp-python, or llama.cpp's own program llama-bench. The protocol is that of ``chipwise measure``: each
measurement runs in a fresh process, warms up until two requests agree, then times at least 30 prefills and 200 decode
steps; models take turns, so that a machine that heats up slows all of them equally. Power is read from counters of
processor packages, board sensors, nvidia-smi, or the battery if the device runs on battery. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import gc
import hashlib
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

SCHEMA, RESULTS = "chipwise.kit/1", "chipwise.kit_results/1"
FIRST_CYCLES, STEADY, WARM_UP_S = 2, 0.03, 0.5
# of a long load: number of windows, minimum seconds, limits on the ambient temperature
WINDOWS, LEAST_LONG_S, AMBIENTS_C = 60, 5.0, (-40.0, 85.0)
LOOK_S, FEWEST_LOOKS = 0.1, 4  # seconds between two readings of power, and fewest readings for a mean
LEAST_BATTERY_W = 0.2  # a working device draws more; if not, the driver does not use the kernel's unit
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnxruntime as ort

    from chipwise.deploy.kits.kit_types import Bench, Kit, Load, Reply, Request, Results, Settings, Window, Workload

    Tokens = npt.NDArray[np.integer]
    Values = npt.NDArray[np.float32]


class KitError(Exception):
    """An error that the person at the device can fix."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all models in the folder of this file."""
    options = _options(arguments)
    if options.worker:
        return _work()
    try:
        folder = Path(__file__).resolve().parent
        kit = _read_kit(folder)
        out = _free_name(Path(options.out) if options.out else folder / "kit-results.json")
        results = _measure_all(kit, folder, options, out)
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the measurements so far are kept", file=sys.stderr)
        return 130
    failed = [item for item in results["measured"] if not item["rounds"]]
    for item in failed:
        print(f"{item['file']}: not measured: {item['error']}", file=sys.stderr)
    print(f"\nwritten: {out}\non the machine with chipwise:  chipwise measurements import {out.name}")
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the models of this folder; writes kit-results.json.")
    parser.add_argument("--out", help="file to write (default: kit-results.json next to this script)")
    parser.add_argument("--device", help="name of this device, if the kit was not made for one")
    parser.add_argument("--threads", type=int, help="threads of the runtime (default: as stated in the kit)")
    parser.add_argument("--gpu-layers", type=int, help="llama.cpp: layers on the GPU; 0 none, -1 all")
    parser.add_argument("--llama-bench", metavar="PROGRAM", help="llama.cpp's llama-bench, to use it for .gguf files")
    parser.add_argument("--only", metavar="TEXT", help="measure only files whose name contains TEXT")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in which each model is measured (default: 3)")
    parser.add_argument("--steps", type=int, default=200, help="minimum decode steps per round (default: 200)")
    parser.add_argument("--prefills", type=int, default=30, help="minimum number of prompts per round (default: 30)")
    parser.add_argument("--seconds", type=float, default=1.5, help="minimum seconds of timing per round (default: 1.5)")
    parser.add_argument("--timeout", type=float, default=900.0, help="maximum seconds per round (default: 900)")
    parser.add_argument(
        "--sustained",
        metavar="SECONDS",
        type=float,
        help="afterwards run the first model for this many seconds without a pause, such as 600 (default: no such run)",
    )
    parser.add_argument("--ambient", metavar="CELSIUS", type=float, help="temperature of the surroundings, such as 25")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    for name in ("threads", "rounds", "steps", "prefills", "seconds", "timeout"):
        value = getattr(found, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be above 0")
    if found.sustained and not LEAST_LONG_S <= found.sustained <= 86_400:
        parser.error(f"--sustained must be 0 or from {LEAST_LONG_S:g} to 86400 seconds")
    if found.ambient is not None and not AMBIENTS_C[0] <= found.ambient <= AMBIENTS_C[1]:
        parser.error("--ambient must be from {:g} to {:g} degrees Celsius".format(*AMBIENTS_C))
    return found


def _read_kit(folder: Path) -> Kit:
    path = folder / "kit.json"
    try:
        kit: Kit = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KitError(f"{path} is missing; copy the complete folder that chipwise kit wrote") from None
    except (ValueError, OSError, RecursionError) as error:
        raise KitError(f"{path} is damaged ({error}); copy it again") from None
    if not isinstance(kit, dict) or kit.get("schema") != SCHEMA:
        raise KitError(f"{path} is not a kit that this script reads ({SCHEMA}); copy kit.py and kit.json together")
    if not isinstance(kit.get("threads"), int) or not _are(kit.get("workload"), int, WORKLOAD):
        raise KitError(f"{path} is damaged (its workload or threads); copy it again")
    if not isinstance(kit.get("models"), list) or not all(_are(item, str, MODEL) for item in kit["models"]):
        raise KitError(f"{path} is damaged (its list of models); copy it again")
    return kit


WORKLOAD = ("batch", "prompt_tokens", "new_tokens")
INTEGER_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "sse4_1", "i8mm", "asimddp", "asimd")
MODEL = ("file", "sha256", "runtime", "design", "name")


def _are(fields: object, kind: type, names: Iterable[str]) -> bool:
    """Whether ``fields`` has all of ``names``, with values of this type."""
    return isinstance(fields, dict) and all(isinstance(fields.get(name), kind) for name in names)


def _free_name(path: Path) -> Path:
    """``path`` or, if it exists, the same name with the time appended, so that earlier results are kept."""
    if not path.parent.is_dir():
        raise KitError(f"--out {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise KitError(f"--out {path}: this is not a file; give another path")
    return path.with_name(f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}{path.suffix}") if path.exists() else path


def _measure_all(kit: Kit, folder: Path, options: argparse.Namespace, out: Path) -> Results:
    device = kit.get("device")
    if options.device and device and options.device != device:
        raise KitError(
            f"--device {options.device}: this kit was made for {device}; run it there, or make another for "
            f"{options.device} with: chipwise kit … --device {options.device}"
        )
    wanted = [item for item in kit["models"] if not options.only or options.only in item["file"]]
    if not wanted:
        raise KitError(f"--only {options.only}: no file of the kit contains this text")
    for item in wanted:
        _check_file(folder / item["file"], item["sha256"])
    machine = describe_machine()
    meter, missing = find_meter(gpu=options.gpu_layers != 0 and (options.gpu_layers or kit.get("gpu_layers", 0)) != 0)
    machine["power_meter"] = None if meter is None else meter.name
    print(f"machine: {machine['name']}, {machine['os']}")
    print(f"power: read from {meter.name}" if meter else f"power: not measured: {missing}")
    threads = options.threads or kit["threads"]
    layers = kit.get("gpu_layers", 0) if options.gpu_layers is None else options.gpu_layers
    results: Results = {
        "schema": RESULTS,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "complete": False,
        "device": device or options.device,
        "machine": machine,
        "threads": threads,
        "kit": kit,
        "measured": [{"file": item["file"], "sha256": item["sha256"], "rounds": [], "error": None} for item in wanted],
    }
    common: Settings = {
        **kit["workload"],
        "threads": threads,
        "gpu_layers": layers,
        "seed": kit.get("seed", 0),
        "min_steps": options.steps,
        "min_prefills": options.prefills,
        "seconds": options.seconds,
        "llama_bench": _llama_bench(options.llama_bench),
        "sustained_s": 0.0,
    }
    for turn in range(options.rounds):
        order = range(len(wanted)) if turn % 2 == 0 else range(len(wanted) - 1, -1, -1)
        for number in order:
            item, found = wanted[number], results["measured"][number]
            if found["error"] is not None:
                continue
            request: Request = {**common, "model": str(folder / item["file"]), "runtime": item["runtime"]}
            for longest in (False, True) if kit.get("prompt_p99") else (False,):
                if longest:
                    request["prompt_tokens"] = kit["prompt_p99"]
                reply = _in_fresh_process(request, timeout_s=options.timeout, meter=meter)
                _show(item["file"], turn + 1, options.rounds, reply, request)
                if "error" in reply:
                    found["error"] = reply["error"]
                    break
                reply["facts"] = {"design": item["design"], "name": item["name"]}
                reply["machine"] = str(machine["name"])
                (found.setdefault("longest", []) if longest else found["rounds"]).append(reply)
            _write(out, results)
    long_s = kit.get("sustained_s", 0) if options.sustained is None else options.sustained
    failed = {item["file"] for item in results["measured"] if item["error"] is not None}
    first = next((item for item in wanted if item["file"] not in failed), None)
    if long_s and first is not None:
        print(f"{first['file']}  without a pause for {long_s:g} s …", flush=True)
        request = {**common, "model": str(folder / first["file"]), "runtime": first["runtime"], "sustained_s": long_s}
        reply = _ask(request, timeout_s=2 * long_s + options.timeout)
        windows, error = reply.get("under_load", []), reply.get("error")
        results["sustained"] = [
            {"file": first["file"], "windows": windows, "ambient_c": options.ambient, "error": error}
        ]
        print(f"{first['file']}  {error or _kept(windows)}", flush=True)
    results["complete"] = all(item["error"] is None for item in results["measured"])
    _write(out, results)
    return results


def _kept(windows: Sequence[Window]) -> str:
    """Text: the speed at the end of a long load, in percent of the speed at its beginning."""
    begin, end = (median([one["tpot_p50_s"] for one in part]) for part in (windows[:3], windows[-3:]))
    return f"at the end {100 * begin / end:.0f} % of the speed at the beginning"


def _check_file(path: Path, wanted: str) -> None:
    if not path.is_file():
        raise KitError(f"{path} is missing; copy the complete folder that chipwise kit wrote")
    found = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            found.update(block)
    if found.hexdigest() != wanted:
        raise KitError(f"{path} differs from the file that was packed (the SHA-256 differs); copy it again")


def _show(file: str, turn: int, turns: int, reply: Reply, workload: Workload) -> None:
    if "error" in reply:
        print(f"{file}  {reply['error']}")
        return
    parts = [f"TTFT {1e3 * median(reply['ttft_s']):.2f} ms"]
    if reply["tpot_s"]:
        parts.append(f"TPOT {1e3 * median(reply['tpot_s']):.3f} ms")
    if reply["peak_memory_bytes"]:
        parts.append(f"peak memory {reply['peak_memory_bytes'] / 1e6:.0f} MB")
    if reply["energy_j"]:
        watts = reply["energy_j"] / reply["wall_s"]
        tokens = workload["batch"] * (max(1, workload["new_tokens"]) if reply["tpot_s"] else 1)
        joules = watts * sum(seconds for _, seconds in _request_parts(reply, workload)) / tokens
        parts.append(f"power {watts:.2f} W, {1e3 * joules:.3g} mJ a token")
    prompt = workload["prompt_tokens"]
    print(f"{file}  round {turn} of {turns}, prompts of {prompt}: {', '.join(parts)} (P50)", flush=True)


def _write(path: Path, value: object) -> None:
    """Writes a file atomically: a kill leaves the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _request_parts(reply: Reply, workload: Workload) -> list[tuple[str, float]]:
    """Seconds that a request spends on its prompt and on its new tokens."""
    parts = [("ttft_s", median(reply["ttft_s"]))]
    if reply["tpot_s"]:
        parts.append(("tpot_s", max(1, workload["new_tokens"] - 1) * median(reply["tpot_s"])))
    return parts


def _in_fresh_process(request: Request, *, timeout_s: float, meter: Meter | None = None) -> Reply:
    """The result of a measurement in a subprocess, while this process reads the power meter."""
    with _Watch(meter) as watch:
        reply = _ask(request, timeout_s=timeout_s)
    if "error" not in reply:
        watch.settle(reply, request)
    return reply


def _ask(request: Request, *, timeout_s: float) -> Reply:
    flags = [flag for flag, on in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if on]
    threads = str(request["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    command = [sys.executable, *flags, os.path.abspath(__file__), "--worker"]
    asked = json.dumps(request)
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, timeout=timeout_s, text=True, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s; allow more time with --timeout"}
    try:
        reply: Reply = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        tail = " | ".join(done.stderr.strip().splitlines()[-3:])
        return {"error": f"the measuring process died (code {done.returncode}). {tail}"}
    return reply if isinstance(reply, dict) else {"error": "the measuring process gave no answer"}


def _work() -> int:
    """One measurement in this process: the request is read from stdin, the reply is the last line of stdout."""
    request: Request = json.load(sys.stdin)
    reply_to = os.dup(1)
    os.dup2(2, 1)  # output of the runtime must not mix with the reply
    try:
        bench = request["runtime"] == "llama.cpp" and request["llama_bench"]
        long = _run_long if request.get("sustained_s") else _run
        reply: Reply = _run_llama_bench(request) if bench else long(request)
    except KitError as error:
        reply = {"error": str(error)}
    except MemoryError:
        reply = {"error": "out of memory"}
    with os.fdopen(reply_to, "w") as stream:
        stream.write(json.dumps(reply) + "\n")
    return 0


def _run(request: Request) -> Reply:
    """The measurement protocol: two cycles untimed, warm-up until steady, then timed cycles."""
    cpus = _pin(request["threads"])
    session = _open(request)
    loop = _Loop(session, request)
    steady = loop.warm_up()
    loop.check()
    peak = _peak_memory_bytes()
    loop.clear()
    gc.collect()
    gc.disable()
    clock_hz, before = _clock_hz(cpus), _load(cpus)
    started, since = time.perf_counter(), time.monotonic()
    while True:
        elapsed = time.perf_counter() - started
        enough = len(loop.tpot_s if loop.steps else loop.ttft_s) >= request["min_steps"]
        if enough and len(loop.ttft_s) >= request["min_prefills"] and elapsed >= request["seconds"]:
            break
        loop.cycle(decode=not enough or elapsed < request["seconds"])
    after, until = _load(cpus), time.monotonic()
    loop.check()
    readings = _readings(before, after, threads=request["threads"], cpus=len(cpus))
    readings["unsteady"] = float(not steady)
    return {
        "cpus": cpus,
        "runtime_version": session.version,
        "ttft_s": loop.ttft_s,
        "tpot_s": loop.tpot_s,
        "ttft_cpu_s": loop.ttft_cpu_s,
        "tpot_cpu_s": loop.tpot_cpu_s,
        "cpu_s": after["cpu_s"] - before["cpu_s"],
        "wall_s": after["wall_s"] - before["wall_s"],
        "peak_memory_bytes": peak,
        "energy_j": None,
        "windows": {"request": [since, until]},
        "readings": readings,
        "load_before": before["load"],
        "load_after": after["load"],
        "clock_hz_before": clock_hz,
        "clock_hz_after": _clock_hz(cpus),
        "temperature_c": _temperature_c(),
    }


def _run_long(request: Request) -> Reply:
    """Runs requests without a pause; returns the median step, the clock and the temperature of each period."""
    cpus = _pin(request["threads"])
    loop = _Loop(_open(request), request)
    loop.cycle()
    loop.check()
    gc.disable()
    windows: list[Window] = []
    started, begun, width_s = time.perf_counter(), 0.0, request["sustained_s"] / WINDOWS
    while begun < request["sustained_s"]:
        loop.clear()
        while (now := time.perf_counter() - started) < begun + width_s:
            loop.cycle()
        steps = loop.tpot_s or loop.ttft_s
        found: Window = {"at_s": (begun + now) / 2, "tpot_p50_s": median(steps), "steps": len(steps)}
        found["clock_hz"], found["temperature_c"] = _clock_hz(cpus), _temperature_c()
        windows.append(found)
        begun = now
    loop.check()
    return {"under_load": windows}


class _Loop:
    """Runs requests one after the other and records the times of prefills and decode steps."""

    def __init__(self, session: _Onnx | _Llama, request: Request) -> None:
        self._session = session
        self.steps = 0 if session.encodes else max(1, request["new_tokens"] - 1)
        draw = random.Random(request["seed"])
        shape = range(request["batch"]), range(request["prompt_tokens"])
        tokens = [[draw.randrange(session.vocab_size) for _ in shape[1]] for _ in shape[0]]
        self._tokens: Tokens = session.numpy.array(tokens, session.numpy.int64)
        self._logits: Values | None = None
        self.clear()

    def clear(self) -> None:
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.ttft_cpu_s: list[float] = []
        self.tpot_cpu_s: list[float] = []

    def cycle(self, *, decode: bool = True) -> None:
        """One request: the prompt and then, if ``decode``, all new tokens, chosen greedily."""
        session, cpu, clock = self._session, time.process_time, time.perf_counter
        cpu_start, start = cpu(), clock()
        logits = session.prefill(self._tokens)
        token = logits.argmax(axis=-1)[:, None]
        self.ttft_s.append(clock() - start)
        self.ttft_cpu_s.append(cpu() - cpu_start)
        for _ in range(self.steps if decode else 0):
            cpu_start, start = cpu(), clock()
            logits = session.decode(token)
            token = logits.argmax(axis=-1)[:, None]
            self.tpot_s.append(clock() - start)
            self.tpot_cpu_s.append(cpu() - cpu_start)
        self._logits = logits

    def check(self) -> None:
        if self._logits is not None and not (abs(self._logits) < float("inf")).all():
            raise KitError("the model's outputs are not finite numbers")

    def warm_up(self) -> bool:
        """Runs until the median steps of two consecutive cycles agree within 3 %, or for about half a second."""
        started, previous, prefills = time.perf_counter(), float("inf"), []
        for _ in range(FIRST_CYCLES):
            self.cycle()
        while time.perf_counter() - started < WARM_UP_S:
            self.clear()
            self.cycle()
            prefills += self.ttft_s
            middle = median(self.tpot_s or self.ttft_s)
            calm = len(prefills) < 2 or prefills[-1] < (1 + 5 * STEADY) * median(prefills)
            if abs(middle / previous - 1) < STEADY and calm:
                return True
            previous = middle
        return False


def _open(request: Request) -> _Onnx | _Llama:
    if request["runtime"] == "onnxruntime":
        return _Onnx(request)
    if request["runtime"] == "llama.cpp":
        return _Llama(request)
    raise KitError(f"this script measures onnxruntime and llama.cpp, not {request['runtime']}")


class _Onnx:
    """A file of chipwise's ONNX exporter in ONNX Runtime on the CPU; buffers are bound once."""

    def __init__(self, request: Request) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise KitError("onnxruntime is not installed here; install it with: python3 -m pip install onnxruntime")
        import numpy as np
        import onnxruntime as ort

        self.numpy, self.version = np, str(ort.__version__)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = request["threads"], 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        given = Path(request["model"]).with_suffix(".inputs.npz")  # data of a graph that chipwise did not export
        self._feed = dict(np.load(given, allow_pickle=False)) if given.is_file() else {}
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if self._feed else level.ORT_ENABLE_BASIC
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        try:
            self._session = ort.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise KitError(f"ONNX Runtime cannot load {request['model']}: {error}") from None
        if self._feed:
            self.encodes, self.vocab_size = True, 1
            return
        facts = json.loads(self._session.get_modelmeta().custom_metadata_map.get("chipwise", "null"))
        if facts is None:
            raise KitError(f"{request['model']}: this ONNX file is not one that chipwise wrote")
        inner = self._session.get_modelmeta().custom_metadata_map.get("decoder")  # decoder of latents to images
        decoder = inner and ort.InferenceSession(base64.b64decode(inner), options, providers=["CPUExecutionProvider"])
        self._decoder: ort.InferenceSession | None = decoder
        self.vocab_size, self.encodes, self._facts = facts["vocab_size"] or 1, "encodes" in facts, facts
        batch, prompt = request["batch"], request["prompt_tokens"]
        room = prompt if self.encodes else prompt + request["new_tokens"]
        if room > facts["max_tokens"]:
            raise KitError(f"{request['model']}: it has {facts['max_tokens']} positions; the workload needs {room}")
        if "image" in facts:
            drawn, shape = np.random.default_rng(0), (batch, *facts["image"])
            numbers = facts.get("numbers")  # vocabulary of a text given as word ids
            self._image = drawn.integers(numbers, size=shape) if numbers else drawn.standard_normal(shape, np.float32)
            self._told = {name: np.zeros((batch, 1), np.float32) for name in facts.get("told", ())}
            if self._told:
                self._told["label"] = np.arange(batch, dtype=np.int64) % facts["labels"]
        if not self.encodes:
            self._bind_all(batch, prompt, room)

    def _bind_all(self, batch: int, prompt: int, room: int) -> None:
        np, facts = self.numpy, self._facts
        self._length, self._prompt = 0, prompt
        self._seqlens, self._total = np.zeros(batch, np.int32), np.zeros((), np.int32)
        self._states = {f"{n}": np.zeros((batch, c, k), np.float32) for n, c, k in facts.get("conv", ())}
        self._cache = dict(self._states)
        for layer, heads, size in facts["kv"]:
            for name in ("key", "value"):
                self._cache[f"{layer}.{name}"] = np.zeros((batch, heads, room, size), np.float32)
        self._logits: Values = np.empty((batch, 1, self.vocab_size), np.float32)
        self._token, self._position = np.zeros((batch, 1), np.int64), np.zeros((batch, 1), np.int64)
        self._step = self._binding(self._token, self._position)
        self._held = np.zeros((batch, prompt), np.int64)
        places = np.ascontiguousarray(np.broadcast_to(np.arange(prompt, dtype=np.int64), (batch, prompt)))
        self._first, self._places = self._binding(self._held, places), places

    def _binding(self, tokens: Tokens, positions: Tokens) -> object:
        binding, facts = self._session.io_binding(), self._facts
        inputs = {"tokens": tokens}
        if facts["positions"] == "learned":
            inputs["positions"] = positions
        if facts["kv"]:
            inputs.update(seqlens_k=self._seqlens, total_sequence_length=self._total)
        inputs.update({f"past.{name}": value for name, value in self._cache.items()})
        for name, value in inputs.items():
            binding.bind_input(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        outputs = {f"present.{name}": value for name, value in self._cache.items()}
        outputs["logits"] = self._logits
        for name, value in outputs.items():
            binding.bind_output(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        return binding

    def _moves(self) -> Iterator[tuple[float, float, float]]:
        """For each denoising step: the diffusion time, and factors for the velocities of this and the previous step."""
        steps, shift, last = self._facts.get("steps", 0), self._facts.get("shift", 1.0), 0.0
        for i in range(steps):
            time_now, end = (n / (n + shift * (steps - n)) for n in (i, i + 1))
            size = end - time_now
            ahead = size / last / 2 if last and self._facts.get("solver") == "multistep" else 0.0
            yield time_now, size * (1 + ahead), -size * ahead
            last = size

    def _run(self, inputs: dict[str, npt.NDArray[np.generic]], session: ort.InferenceSession | None = None) -> Values:
        found: Values = (session or self._session).run(None, inputs)[0]
        return found

    def prefill(self, tokens: Tokens) -> Values:
        """Logits of the last position of a new prompt; for an encoder, its output."""
        if self._feed:
            return self._run(self._feed).reshape(1, -1)[:, :64]  # enough values to check whether outputs are finite
        if "image" in self._facts:
            if not self._facts.get("steps"):
                return self._run({self._session.get_inputs()[0].name: self._image})
            image: Values = self._image.astype(self.numpy.float32, copy=False)
            last: Values = self.numpy.zeros_like(image)
            for time_now, now, before in self._moves():  # a denoiser: one image takes several passes
                self._told["time"].fill(time_now)
                velocity = self._run({"image": image, **self._told})
                if "guidance" in self._facts:  # second pass without a label
                    free = {**self._told, "label": self.numpy.full_like(self._told["label"], self._facts["labels"])}
                    without = self._run({"image": image, **free})
                    velocity = without + self._facts["guidance"] * (velocity - without)
                image = image + self.numpy.float32(now) * velocity + self.numpy.float32(before) * last
                last = velocity
            return image if self._decoder is None else self._run({"latents": image}, self._decoder)
        if self.encodes:
            inputs: dict[str, npt.NDArray[np.generic]] = {"tokens": tokens}
            if self._facts["padded"]:
                inputs["mask"] = self.numpy.ones(tokens.shape, self.numpy.int32)
            return self._run(inputs)
        self._length = self._prompt
        for value in self._states.values():
            value.fill(0.0)
        self._seqlens.fill(self._length - 1)
        self._total.fill(self._length)
        self._held[:] = tokens
        self._session.run_with_iobinding(self._first)
        return self._logits[:, 0]

    def decode(self, tokens: Tokens) -> Values:
        self._token[:] = tokens
        self._position.fill(self._length)
        self._seqlens.fill(self._length)
        self._length += 1
        self._total.fill(self._length)
        self._session.run_with_iobinding(self._step)
        return self._logits[:, 0]


class _Llama:
    """A GGUF file in llama.cpp, by the package llama-cpp-python."""

    encodes = False
    log: object = None  # llama.cpp may call it until the process ends

    def __init__(self, request: Request) -> None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise KitError(
                "llama.cpp is not installed here; put its program llama-bench on the PATH (or name it with "
                "--llama-bench), or install the package with: python3 -m pip install llama-cpp-python"
            )
        import llama_cpp
        import numpy as np

        self.numpy, self._api, self.version = np, llama_cpp, str(llama_cpp.__version__)
        _Llama.log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(_Llama.log, ctypes.c_void_p(0))
        how = llama_cpp.llama_model_default_params()
        how.n_gpu_layers = 999 if request["gpu_layers"] < 0 else request["gpu_layers"]
        self._model = llama_cpp.llama_model_load_from_file(str(request["model"]).encode(), how)
        if not self._model:
            raise KitError(f"llama.cpp {self.version} cannot load {request['model']}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        batch, room = request["batch"], request["prompt_tokens"] + request["new_tokens"]
        made = llama_cpp.llama_context_default_params()
        made.n_ctx, made.n_seq_max, made.kv_unified = room * batch, batch, False
        made.n_batch = made.n_ubatch = room * batch
        made.n_threads = made.n_threads_batch = request["threads"]
        if not request["gpu_layers"]:  # same as chipwise measure on the CPU: cache in FP32, no flash attention
            made.type_k = made.type_v = 0
            made.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, made)
        if not self._context:
            raise KitError(f"llama.cpp {self.version} cannot run {request['model']}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(room * batch, 0, 1)
        self._count, self._length = batch, 0

    def prefill(self, tokens: Tokens) -> Values:
        """Logits of the last position of a new prompt."""
        self._api.llama_memory_clear(self._memory, False)
        self._length = 0
        return self.decode(tokens)

    def decode(self, tokens: Tokens) -> Values:
        batch, (sequences, length) = self._batch, tokens.shape
        batch.n_tokens = sequences * length
        for row in range(sequences):
            for column in range(length):
                i = row * length + column
                batch.token[i], batch.pos[i] = int(tokens[row, column]), self._length + column
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
                batch.logits[i] = column == length - 1
        self._length += length
        code = self._api.llama_decode(self._context, batch)
        if code:
            raise KitError(f"llama.cpp could not run {sequences} x {length} tokens (code {code})")
        pointer = self._api.llama_get_logits(self._context)
        found: Values = self.numpy.ctypeslib.as_array(pointer, (sequences, self.vocab_size))
        return found


def _llama_bench(given: str | None) -> str | None:
    """The llama-bench program for GGUF files: the given one, or one on the PATH if the package is missing."""
    if given:
        found = shutil.which(given) or (os.path.abspath(given) if os.path.isfile(given) else None)
        if found is None:
            raise KitError(f"--llama-bench {given}: there is no such program")
        return found
    return None if importlib.util.find_spec("llama_cpp") else shutil.which("llama-bench")


def _run_llama_bench(request: Request) -> Reply:
    """Runs llama-bench on prompts, then on generation after a prompt; a TPOT sample is the mean over several steps."""
    if request.get("sustained_s"):
        raise KitError("llama-bench pauses between runs; for a long load install the package llama-cpp-python")
    if request["batch"] != 1:
        raise KitError("llama-bench measures one sequence; for batches install the package llama-cpp-python")
    prompt, new = request["prompt_tokens"], max(1, request["new_tokens"] - 1)
    rounds = max(5, min(request["min_prefills"], -(-request["min_steps"] // new)))
    layers = request["gpu_layers"]
    program = request["llama_bench"] or "llama-bench"
    command = [program, "-m", request["model"], "-t", str(request["threads"]), "-o", "json"]
    command += ["-ngl", str(999 if layers < 0 else layers)]
    cpus = range(os.cpu_count() or 1)
    before, cpu_s = _load(cpus), sum(os.times()[2:4])
    times = [time.monotonic()]
    first = _bench(command + ["-p", str(prompt), "-n", "0", "-r", str(request["min_prefills"])])
    times.append(time.monotonic())
    then = _bench(command + ["-p", "0", "-n", str(new), "-d", str(prompt), "-r", str(rounds)])
    times.append(time.monotonic())
    after, cpu_s = _load(cpus), sum(os.times()[2:4]) - cpu_s
    after["cpu_s"], before["cpu_s"] = cpu_s, 0.0  # processor time of the program, not of this process
    readings = _readings(before, after, threads=0, cpus=len(cpus))
    readings["elsewhere"] = readings.pop("others")  # the program is not pinned, so other processes share all its cores
    return {
        "cpus": [],
        "runtime_version": "llama-bench {build_commit} ({build_number})".format(**{**_NO_BUILD, **first}),
        "ttft_s": [nanoseconds / 1e9 for nanoseconds in first["samples_ns"]],
        "tpot_s": [nanoseconds / 1e9 / new for nanoseconds in then["samples_ns"]],
        "steps_per_sample": new,
        "ttft_cpu_s": [],
        "tpot_cpu_s": [],
        "cpu_s": cpu_s,
        "wall_s": after["wall_s"] - before["wall_s"],
        "peak_memory_bytes": _peak_memory_bytes(children=True),
        "energy_j": None,
        "windows": {"ttft_s": times[:2], "tpot_s": times[1:]},  # both include loading the file
        "readings": {name: readings[name] for name in ("steal", "elsewhere")},
        "load_before": before["load"],
        "load_after": after["load"],
        "temperature_c": _temperature_c(),
        "backends": first.get("backends"),
    }


_NO_BUILD = {"build_commit": "of unknown build", "build_number": "unknown"}


def _bench(command: list[str]) -> Bench:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise KitError(f"{command[0]} cannot be run: {error}") from None
    try:
        rows: list[Bench] = json.loads(done.stdout)
    except ValueError:
        tail = " | ".join(done.stderr.strip().splitlines()[-3:])
        how = f"crashed (signal {-done.returncode})" if done.returncode < 0 else f"code {done.returncode}"
        raise KitError(f"llama-bench gave no JSON: {how}. {tail}") from None
    if len(rows) != 1 or not rows[0].get("samples_ns"):
        raise KitError(f"llama-bench gave {len(rows)} results, not one result with samples; use a newer llama-bench")
    return rows[0]


class Meter:
    """A power source. ``read`` returns the power in watts; None if reading fails.

    If ``counts`` is true, ``read`` instead returns the joules that a counter has added up.
    """

    def __init__(self, name: str, read: Callable[[], float | None], *, counts: bool = False) -> None:
        self.name, self.read, self.counts = name, read, counts


class _Watch:
    """Reads a power meter in a separate thread while another process works."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter, self._over = meter, threading.Event()
        self._looks: list[tuple[float, float]] = []
        self._thread = None if meter is None else threading.Thread(target=self._look, args=(meter,), daemon=True)

    def __enter__(self) -> _Watch:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, meter: Meter) -> None:
        while not self._over.is_set():
            value = meter.read()
            if value is not None:
                self._looks.append((time.monotonic(), value))
            self._over.wait(LOOK_S)

    def settle(self, reply: Reply, request: Request) -> None:
        """Adds joules to the reply: wall seconds times mean watts (prefill and decode weighted as in a request)."""
        windows, seconds = reply.pop("windows"), dict(_request_parts(reply, request))
        if self._meter is None:
            return
        watts = {name: mean_w(self._looks, *ends, counts=self._meter.counts) for name, ends in windows.items()}
        known = {name: value for name, value in watts.items() if value is not None}
        if len(known) < len(watts):
            return
        seconds["request"] = 1.0
        whole = sum(seconds[name] for name in known)
        mean = sum(known[name] * seconds[name] for name in known) / whole
        reply["energy_j"] = reply["wall_s"] * mean or None
        reply["energy_from"] = self._meter.name


def mean_w(looks: Sequence[tuple[float, float]], start: float, end: float, *, counts: bool) -> float | None:
    """Mean watts between two moments, from readings (moment, joules or watts); None if there are too few readings.

    If a counter wraps to zero in between, that interval is left out.
    """
    inside = [(when, value) for when, value in looks if start <= when <= end]
    if len(inside) < FEWEST_LOOKS:
        return None
    if not counts:
        return sum(value for _, value in inside) / len(inside)
    steps = [(inside[i][0] - inside[i - 1][0], inside[i][1] - inside[i - 1][1]) for i in range(1, len(inside))]
    kept = [(seconds, joules) for seconds, joules in steps if joules >= 0]
    return sum(joules for _, joules in kept) / sum(seconds for seconds, _ in kept) if kept else None


def find_meter(root: str = "/", *, gpu: bool = False) -> tuple[Meter | None, str]:
    """The best power source of this machine, or the reason why there is none.

    Sources in order of preference: nvidia-smi for a graphics card, board sensors (INA3221 of a Jetson), counters of
    processor packages (RAPL), and the battery, if the device runs on it (this includes the screen).

    References:
        Linux kernel documentation: power/powercap/powercap.rst, hwmon/sysfs-interface.rst (mV, mA, uW, uJ),
        ABI/testing/sysfs-class-power (uA, uV, uW).
    """
    if gpu and shutil.which("nvidia-smi"):
        return Meter("nvidia-smi, the graphics card", _nvidia_w), ""
    base = Path(root)
    rails = _rails(base)
    if rails:
        return Meter(f"{', '.join(sorted(rails))} (board sensors)", partial(_sum_of, list(rails.values()))), ""
    packages = [path for path in sorted((base / "sys/class/powercap").glob("*-rapl:*")) if path.name.count(":") == 1]
    counters = [path / "energy_uj" for path in packages if "mmio" not in path.name]
    if counters and all(_number(_text(str(path))) is not None for path in counters):
        read = partial(_sum_of, [partial(_scaled, path, 1e-6) for path in counters])
        return Meter("processor packages (RAPL)", read, counts=True), ""
    battery, why = _battery(base)
    if battery is not None:
        return battery, ""
    if counters:
        why = f"only an administrator may read {counters[0]}; to let this user: sudo chmod a+r {counters[0]}"
    return None, why


def _rails(base: Path) -> dict[str, Callable[[], float | None]]:
    """Watts of the supply rails that board sensors report, by name; only the whole module's rail if there is one."""
    found: dict[str, Callable[[], float | None]] = {}
    for chip in sorted((base / "sys/class/hwmon").glob("hwmon*")):
        if not (_text(str(chip / "name")) or "").startswith(("ina3221", "ina226", "ina231")):
            continue
        for volts in sorted(chip.glob("in[0-9]*_input")):
            channel = volts.name[2 : -len("_input")]
            amperes = chip / f"curr{channel}_input"
            label = _text(str(chip / f"in{channel}_label")) or f"{chip.name} channel {channel}"
            if _scaled(amperes, 1e-3) is not None and label.lower() not in ("nc", "sum of shunt voltages"):
                found[label] = partial(_rail_w, volts, amperes)
    whole = next((name for name in ("VDD_IN", "POM_5V_IN") if name in found), None)
    return found if whole is None else {whole: found[whole]}


def _rail_w(volts: Path, amperes: Path) -> float | None:
    return _times(_scaled(volts, 1e-3), _scaled(amperes, 1e-3))


def _battery(base: Path) -> tuple[Meter | None, str]:
    """The battery as a power meter, or the reason why it cannot be used."""
    for supply in sorted((base / "sys/class/power_supply").glob("*")):
        if _text(str(supply / "type")) != "Battery" or _text(str(supply / "scope")) == "Device":
            continue
        if _text(str(supply / "status")) != "Discharging":
            return None, "the device is plugged in, so its battery does not show its power; unplug it to measure"

        def read(supply: Path = supply) -> float | None:
            found = _scaled(supply / "power_now", 1e-6)
            if found is None:
                found = _times(_scaled(supply / "current_now", 1e-6), _scaled(supply / "voltage_now", 1e-6))
            return None if found is None else abs(found)

        watts = read()
        if watts is None:
            return None, f"this user may not read current and voltage of {supply}"
        if watts < LEAST_BATTERY_W:
            return None, f"{supply}: {watts:.3g} W is too little for a working device; its driver uses a different unit"
        return Meter("battery, the whole device with its screen", read), ""
    return None, "no counter, sensor or battery that this user may read reports power"


def _nvidia_w() -> float | None:
    said = _said("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")
    try:
        return sum(float(line) for line in (said or "").splitlines()) or None
    except ValueError:
        return None


def _scaled(path: Path, unit: float) -> float | None:
    try:
        return float(_text(str(path)) or "") * unit
    except ValueError:
        return None


def _times(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _sum_of(parts: Iterable[Callable[[], float | None]]) -> float | None:
    values = [part() for part in parts]
    return None if None in values else sum(value for value in values if value is not None)


def describe_machine() -> dict[str, object]:
    """Description of this machine as reported by its operating system; None for unknown values."""
    cpu, cores = _cpu_name(), os.cpu_count() or 1
    try:
        memory: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = _number(_said("sysctl", "-n", "hw.memsize"))
    highest = _clock_hz(range(cores), "cpuinfo_max_freq", best=True)
    return {
        "name": f"{cpu}, {cores} cores",
        "cpu": cpu,
        "cores": cores,
        "memory_bytes": memory,
        "model": _text("/proc/device-tree/model") or _said("getprop", "ro.product.model"),
        "gpus": (_said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").splitlines(),
        "clock_hz": highest,
        "temperature_c": _temperature_c(),
        "os": platform.platform(),
        "architecture": platform.machine(),
        "flags": _flags(),
        "python": platform.python_version(),
    }


def _flags() -> str:
    """The CPU flags for integer dot product instructions."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _text("/proc/cpuinfo") or "", re.MULTILINE)
    flags = found.group(1).split() if found else []
    return " ".join(flag for flag in INTEGER_FLAGS if flag in flags)


def _cpu_name() -> str:
    listed = _text("/proc/cpuinfo") or ""
    found = re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE)
    if found:
        return found.group(1).strip()
    makers = [_said("getprop", name) for name in ("ro.soc.manufacturer", "ro.soc.model")]
    phone = " ".join(part for part in makers if part)
    hardware = re.search(r"^Hardware\s*:\s*(.+)$", listed, re.MULTILINE)
    return (
        _said("sysctl", "-n", "machdep.cpu.brand_string")
        or phone
        or (hardware.group(1).strip() if hardware else "")
        or _text("/proc/device-tree/model")
        or platform.processor()
        or platform.machine()
        or "unknown CPU"
    )


def _said(*command: str) -> str | None:
    """Output of a system program; None if the program does not exist."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout.strip() or None) if done.returncode == 0 else None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip("\0\n ") or None
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _clock_hz(cpus: Sequence[int], file: str = "scaling_cur_freq", *, best: bool = False) -> float | None:
    """Mean clock of the cores in Hz; with ``best``, the highest clock of any core."""
    texts = [_text(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}") for cpu in cpus]
    found = [1e3 * khz for khz in map(_number, texts) if khz]
    if not found:
        return None
    return max(found) if best else sum(found) / len(found)


def _temperature_c() -> float | None:
    """Temperature of the hottest thermal zone in degrees Celsius."""
    texts = [_text(str(zone)) for zone in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    return max((milli / 1e3 for milli in map(_number, texts) if milli), default=None)


def _peak_memory_bytes(*, children: bool = False) -> int | None:
    """Peak resident memory of this process, or of the largest of its children."""
    if not children:
        found = re.search(r"^VmHWM:\s*(\d+) kB", _text("/proc/self/status") or "", re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
    if importlib.util.find_spec("resource") is None:
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return int(used) * (1 if sys.platform == "darwin" else 1024) or None


def _pin(threads: int) -> list[int]:
    """Pins this process to the fastest cores (the idlest of equally fast ones), if it can; returns the cores."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(threads))
    allowed = sorted(os.sched_getaffinity(0))
    before = {cpu: _busy_s([cpu])[0] or 0.0 for cpu in allowed}
    time.sleep(0.1)
    busy = {cpu: (_busy_s([cpu])[0] or 0.0) - before[cpu] for cpu in allowed}
    speed = {cpu: _clock_hz([cpu], "cpuinfo_max_freq") or 0.0 for cpu in allowed}
    chosen = sorted(sorted(allowed, key=lambda cpu: (-speed[cpu], busy[cpu], cpu))[:threads])
    os.sched_setaffinity(0, chosen)
    return chosen


def _busy_s(cpus: Sequence[int]) -> tuple[float | None, float | None]:
    """Seconds for which the cores were busy, and for which the hypervisor took them away."""
    lines, names = (_text("/proc/stat") or "").splitlines(), {f"cpu{cpu}" for cpu in cpus}
    found = [[int(field) for field in line.split()[1:9]] for line in lines if line.split()[0] in names]
    if not found or not hasattr(os, "sysconf"):
        return None, None
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy = sum(user + nice + system + irq + soft for user, nice, system, _, _, irq, soft, _ in found)
    return busy * tick_s, sum(fields[7] for fields in found) * tick_s


def _load(cpus: Sequence[int]) -> Load:
    """Load counters at this moment; the load over a period is the difference of two readings."""
    busy, steal = _busy_s(cpus)
    others = sorted(set(range(os.cpu_count() or 1)) - set(cpus))
    switches: int | None = None
    if importlib.util.find_spec("resource") is not None:
        import resource

        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return {
        "wall_s": time.perf_counter(),
        "cpu_s": time.process_time(),
        "busy_s": busy,
        "steal_s": steal,
        "elsewhere_s": _busy_s(others)[0],
        "switches": switches,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _readings(before: Load, after: Load, *, threads: int, cpus: int) -> dict[str, float | None]:
    """Readings of the load between two moments, under the names that chipwise has for them."""

    def change(name: Literal["busy_s", "steal_s", "elsewhere_s", "switches"]) -> float | None:
        one, other = before[name], after[name]
        return None if one is None or other is None else float(other - one)

    def share(part: float | None, whole: float) -> float | None:
        return None if part is None else max(0.0, part) / whole

    wall_s = max(after["wall_s"] - before["wall_s"], 1e-9)
    cpu_s, others = after["cpu_s"] - before["cpu_s"], (os.cpu_count() or 1) - cpus
    busy = change("busy_s")
    return {
        "lost": max(0.0, 1 - cpu_s / wall_s) if threads == 1 else None,
        "others": share(None if busy is None else busy - cpu_s, wall_s * cpus),
        "steal": share(change("steal_s"), wall_s * cpus),
        "elsewhere": share(change("elsewhere_s"), wall_s * others) if others else None,
        "switches_per_s": share(change("switches"), wall_s),
    }


if __name__ == "__main__":
    sys.exit(main())
