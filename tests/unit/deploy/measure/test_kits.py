"""Kits: the script needs the standard library and the runtime alone, and what it measures comes back unchanged."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chipwise
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.kits import kit_script
from chipwise.deploy.kits.kits import KitMachine, another_device, read_kit, read_results
from chipwise.deploy.measure.kit_checks import sealed
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder, OnnxRuntimeSession
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.hardware.detect import INSTRUCTIONS, instructions
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import States, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

ARCH = uniform(vocab_size=64, d_model=32, depth=2, heads=2, ffn_width=64, max_tokens=32, name="tiny")
QUICK = ("--rounds", "2", "--steps", "20", "--prefills", "3", "--seconds", "0.01")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    return tmp_path


def small_bert() -> ArchSpec:
    """A sentence encoder as BERT is one: both ways, learned positions, norms after the blocks."""
    attention = Attention(heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
    ffn = FeedForward(width=32, activation="gelu", gated=False, bias=True)
    common = {"d_model": 16, "max_tokens": 16, "norm": "layernorm", "norm_bias": True}
    kind = {"positions": "learned", "norm_place": "post", "embedding_norm": True, "final_norm": False}
    kind |= {"stem": Tokens(vocab_size=64, token_types=2), "head": States()}
    return ArchSpec(name="bert", layers=(Layer(attention=attention, ffn=ffn),), **common, **kind)


def packed(folder: Path, **options: Any) -> Path:
    io.save(ARCH, folder / "tiny.json")
    return chipwise.kit(folder / "tiny.json", out=folder / "kit", prompt=5, new=4, **options).folder


def run(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script as a person starts it, without chipwise: isolated, so PYTHONPATH does not lead to the source."""
    command = [sys.executable, "-I", "kit.py", *arguments]
    return subprocess.run(command, cwd=kit, capture_output=True, text=True, timeout=120, check=False)


def test_the_script_imports_the_standard_library_alone() -> None:
    """Everything else is imported where it is used: the runtime, and numpy, which the runtime needs itself."""
    tree = ast.parse(Path(kit_script.__file__).read_text(encoding="utf-8"))
    top = {
        name.partition(".")[0]
        for node in tree.body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert top <= sys.stdlib_module_names
    anywhere = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert anywhere - sys.stdlib_module_names == {"numpy", "onnxruntime", "llama_cpp"}


def test_a_kit_is_measured_elsewhere_and_comes_back(home: Path) -> None:
    """What the file holds is what the measurement holds: all samples of both rounds, under the stated device."""
    kit = packed(home, device="my-board", weights="int8")
    assert sorted(path.name for path in kit.iterdir()) == ["README.md", "kit.json", "kit.py", "models"]
    there = Path(shutil.copytree(kit, home / "there"))
    done = run(there, *QUICK)
    assert done.returncode == 0, done.stderr
    raw = json.loads((there / "kit-results.json").read_text())
    assert raw["complete"]
    assert raw["device"] == "my-board"
    rounds = raw["measured"][0]["rounds"]
    assert len(rounds) == 2

    found = chipwise.import_measurements(there / "kit-results.json")
    (measurement,) = found.measurements
    assert found.new == 1
    assert measurement.ttft_s == tuple(s for one in rounds for s in one["ttft_s"])
    assert measurement.tpot_s == tuple(s for one in rounds for s in one["tpot_s"])
    assert len(measurement.tpot_s) >= 40
    assert measurement.peak_memory_bytes == max(one["peak_memory_bytes"] for one in rounds)
    assert (measurement.device, measurement.runtime, measurement.threads) == ("my-board", "onnxruntime", 1)
    assert measurement.workload == chipwise.Workload(prompt_tokens=5, new_tokens=4)
    (stored,) = MeasurementStore().entries(device="my-board")
    assert stored.imported
    assert stored.design == Design(arch=ARCH, weights="int8")
    assert measurement.design == stored.design.digest
    assert chipwise.import_measurements(there / "kit-results.json").new == 0


def test_a_long_load_is_measured_after_the_rounds_and_told_at_the_import(home: Path) -> None:
    """Windows follow one another over five seconds; the surroundings are those that were stated."""
    kit = packed(home, device="my-board")
    done = run(kit, *QUICK, "--rounds", "1", "--sustained", "5", "--ambient", "25")
    assert done.returncode == 0, done.stderr
    assert "without a pause for 5 s" in done.stdout
    (load,) = read_results(kit / "kit-results.json").sustained
    at = [window.at_s for window in load.windows]
    assert at == sorted(at)
    assert 0 < at[0] < at[-1] < 6
    assert len(at) > 20
    assert all(window.steps >= 3 and window.tpot_p50_s > 0 for window in load.windows)
    assert load.ambient_c == 25
    (note,) = chipwise.import_measurements(kit / "kit-results.json").notes
    assert re.search(r"model.onnx keeps \d+ % of its speed over .* of load \(.*surroundings 25 °C\)", note)
    for wrong, message in (("--sustained=2", "0 or from 5 to"), ("--ambient=300", "from -40 to 85 degrees")):
        assert message in run(kit, wrong).stderr


def test_the_script_computes_what_the_harness_computes(home: Path) -> None:
    """The same file, prompt and steps: the same logits, bit for bit, as chipwise's own session."""
    path = export(Design(arch=ARCH, weights="int8"), random_weights(ARCH, seed=1), home / "m.onnx")
    request = {"runtime": "onnxruntime", "model": str(path), "threads": 1, "batch": 2, "prompt_tokens": 3}
    ours = kit_script._open({**request, "new_tokens": 4})
    theirs = OnnxRuntimeSession(path, capacity=7, batch=2)
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):  # a new prompt clears the cache
        np.testing.assert_array_equal(ours.prefill(tokens), theirs.prefill(tokens))
        for step in ([[7], [8]], [[9], [10]]):
            np.testing.assert_array_equal(ours.decode(np.array(step)), theirs.decode(np.array(step)))


def test_the_script_computes_what_llama_cpp_computes(home: Path) -> None:
    """As above, in llama.cpp: two sequences, two prompts, the same logits as of chipwise's own session."""
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    from chipwise.deploy.runtimes.llama_cpp import LlamaCpp

    kit = packed(home, runtime="llama.cpp", weights="int8", batch=2)
    path = kit / "models" / "model.gguf"
    request = {"runtime": "llama.cpp", "model": str(path), "threads": 1, "batch": 2, "prompt_tokens": 3}
    ours = kit_script._open({**request, "new_tokens": 4, "gpu_layers": 0})
    theirs = LlamaCpp().open(path, capacity=7, batch=2, threads=1, options={})
    tokens = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    for _ in range(2):
        np.testing.assert_array_equal(ours.prefill(tokens), theirs.prefill(tokens))
        for step in ([[7], [8]], [[9], [10]]):
            np.testing.assert_array_equal(ours.decode(np.array(step)), theirs.decode(np.array(step)))


def test_an_encoder_is_timed_by_its_passes(home: Path) -> None:
    """An encoder generates nothing: at least 20 passes over the text, and no decode steps."""
    path = home / "bert.onnx"
    arch = small_bert()
    export(Design(arch=arch), random_weights(arch, seed=0), path)
    kit = chipwise.kit(path, out=home / "kit", prompt=6, device="my-board").folder
    assert run(kit, *QUICK).returncode == 0
    ((_, found),) = read_results(kit / "kit-results.json").measurements()
    assert found.encodes
    assert len(found.ttft_s) >= 40
    request = {"runtime": "onnxruntime", "model": str(path), "threads": 1, "batch": 2, "prompt_tokens": 3}
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    ours = kit_script._open({**request, "new_tokens": 1}).prefill(tokens)
    np.testing.assert_array_equal(ours, OnnxEncoder(path).encode(tokens))


def test_the_script_knows_the_flags_that_the_reader_names() -> None:
    assert tuple(INSTRUCTIONS) == kit_script.INTEGER_FLAGS


def test_a_machine_that_is_not_quiet_is_told_from_a_quiet_one(home: Path) -> None:
    """The script's readings are judged by the harness's rules: with 20 % of the core lost they are not clean."""
    kit = packed(home)
    run(kit, *QUICK)
    raw = json.loads((kit / "kit-results.json").read_text())
    for one in raw["measured"][0]["rounds"]:
        calm = dict.fromkeys(one["readings"], 0.0)
        one["readings"] = calm
        one["tpot_cpu_s"], one["tpot_s"] = [1e-3] * 40, [1e-3] * 40
    assert results(home, raw).clean
    assert results(home, raw).instructions == (instructions() or "unknown")
    raw["machine"]["flags"] = "avx2 sse4_1"
    assert results(home, raw).instructions == "AVX2 without VNNI"
    raw["measured"][0]["rounds"][1]["readings"]["lost"] = 0.2
    found = results(home, raw)
    assert not found.clean
    assert "waited for a core 20 % of the time" in found.reasons[0]


def results(folder: Path, raw: dict[str, Any]) -> Measurement:
    path = folder / "results.json"
    path.write_text(json.dumps(raw))
    ((_, found),) = read_results(path).measurements()
    return found


FAKE_BENCH = """#!{python}
import json, sys
value = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt, new, repeats = int(value["-p"]), int(value["-n"]), int(value["-r"])
each = 2_000_000 * prompt + 5_000_000 * new
print(json.dumps([{{"build_commit": "abc", "build_number": 7, "model_filename": value["-m"], "n_prompt": prompt,
    "n_gen": new, "n_depth": int(value.get("-d", 0)), "n_threads": int(value["-t"]), "backends": "CPU",
    "samples_ns": [each + i for i in range(repeats)]}}]))
"""


def test_llama_bench_measures_what_the_package_cannot(home: Path) -> None:
    """Prompts of 5 tokens at 2 ms a token; 3 steps (the first of 4 new tokens is the prompt's) at 5 ms each."""
    kit = packed(home, runtime="llama.cpp", device="my-board")
    program = home / "llama-bench"
    program.write_text(FAKE_BENCH.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    done = run(kit, "--llama-bench", str(program), "--rounds", "1", "--prefills", "6", "--steps", "20")
    assert done.returncode == 0, done.stderr
    ((model, found),) = read_results(kit / "kit-results.json").measurements()
    assert model.file == "models/model.gguf"
    assert found.runtime_version == "llama-bench abc (7)"
    assert found.percentile("ttft", 0.5) == pytest.approx(5 * 2e-3, rel=1e-5)
    assert found.percentile("tpot", 0.5) == pytest.approx(5e-3, rel=1e-5)
    assert len(found.ttft_s) == 6
    assert set(found.environment["rounds"][0]) >= {"steal", "elsewhere"}  # how busy the machine was is known
    assert (len(found.tpot_s), found.steps_per_sample) == (6, 3)  # at least 20 steps are 7 repetitions; at most 6
    with pytest.raises(chipwise.errors.MeasurementError, match="gives only means over 3 decode steps"):
        found.metric("tpot_p99")


def test_nothing_installed_is_one_clear_line(home: Path) -> None:
    """An interpreter without site-packages has no runtime: the file says what to install, and nothing crashes."""
    kit = packed(home)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "kit.py", *QUICK],
        cwd=kit,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": ""},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "models/model.onnx: not measured: onnxruntime is not installed here" in done.stderr
    assert not json.loads((kit / "kit-results.json").read_text())["complete"]


def test_a_kit_that_is_not_whole_says_so(home: Path) -> None:
    kit = packed(home, device="my-board")
    model = kit / "models" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1])
    done = run(kit)
    assert done.returncode == 2
    assert "differs from the file that was packed" in done.stderr
    assert "Traceback" not in done.stderr
    assert "was made for my-board" in run(kit, "--device", "other").stderr
    assert "no file of the kit" in run(kit, "--only", "zzz").stderr
    model.unlink()
    assert "is missing" in run(kit).stderr
    (kit / "kit.json").write_text("{")
    assert "is damaged" in run(kit).stderr


def test_earlier_results_stay_where_they_are(home: Path) -> None:
    kit = packed(home)
    (kit / "kit-results.json").write_text("mine")
    assert run(kit, *QUICK, "--rounds", "1").returncode == 0
    assert (kit / "kit-results.json").read_text() == "mine"
    assert len(list(kit.glob("kit-results*.json"))) == 2


@pytest.fixture
def raw(home: Path) -> dict[str, Any]:
    """Results that were never measured, as the script writes them."""
    kit = packed(home, device="apple-m4")
    data = json.loads((kit / "kit.json").read_text())
    one = {
        **{name: [1e-3, 2e-3, 3e-3] for name in ("ttft_s", "tpot_s", "ttft_cpu_s", "tpot_cpu_s")},
        **{"cpu_s": 0.1, "wall_s": 0.1, "peak_memory_bytes": 10_000_000, "energy_j": None, "readings": {"lost": 0.0}},
        **{"facts": {}, "machine": "Apple M4, 10 cores", "runtime_version": "1"},
    }
    return {
        "schema": "chipwise.kit_results/1",
        "created": "2026-01-02T03:04:05Z",
        "complete": True,
        "device": "apple-m4",
        "machine": {"name": "Apple M4, 10 cores", "cpu": "Apple M4", "cores": 10},
        "threads": 4,
        "kit": data,
        "measured": [{"file": item["file"], "sha256": item["sha256"], "rounds": [one]} for item in data["models"]],
    }


def write(folder: Path, raw: dict[str, Any]) -> Path:
    path = folder / "kit-results.json"
    path.write_text(json.dumps(raw))
    return path


def test_results_that_are_right_are_taken(home: Path, raw: dict[str, Any]) -> None:
    raw["measured"][0]["rounds"][0]["readings"] = {}  # a system that tells nothing of its load
    (found,) = chipwise.import_measurements(write(home, raw)).measurements
    assert (found.device, found.threads, found.metric("tpot_p50")) == ("apple-m4", 4, 2e-3)


def test_a_long_load_says_what_is_kept(home: Path, raw: dict[str, Any]) -> None:
    """A time constant of 100 s towards 1.25 times the cold step: 80 % of the speed remains."""
    windows = [
        {"at_s": t, "tpot_p50_s": 1e-3 * (1 + 0.25 * (1 - math.exp(-t / 100))), "steps": 9,
         "clock_hz": 2.4e9 - 1e6 * t, "temperature_c": 40 + t / 20}
        for t in range(5, 600, 10)
    ]  # fmt: skip
    file = raw["measured"][0]["file"]
    raw["sustained"] = [{"file": file, "windows": windows, "ambient_c": 21.0}, {"file": file, "error": "no memory"}]
    kept, failed = chipwise.import_measurements(write(home, raw)).notes
    assert kept == (
        f"{file} keeps 80 % of its speed over 10 min of load (hottest zone 40.2 °C to 69.8 °C, clock 2.4 GHz to "
        "1.8 GHz, surroundings 21 °C)"
    )
    assert failed == f"{file}: no long load: no memory"


def test_bad_results_are_one_clear_error_each_and_add_nothing(home: Path, raw: dict[str, Any]) -> None:
    whole = json.dumps(raw)
    other = {"name": "Intel(R) Xeon(R) Processor, 2 cores", "cpu": "Intel(R) Xeon(R) Processor", "cores": 2}
    sibling = {"name": "Apple M3 Pro, 11 cores", "cpu": "Apple M3 Pro", "cores": 11}
    (item,) = raw["measured"]
    (one,) = item["rounds"]
    cases = [
        (whole[: len(whole) // 2], "ends in the middle of its JSON"),
        (json.dumps({**raw, "machine": other}), r"measured on Intel\(R\) Xeon\(R\) Processor, which is not apple-m4"),
        (json.dumps({**raw, "machine": sibling}), "measured on Apple M3 Pro, which is not apple-m4"),
        (json.dumps({**raw, "device": "my-board"}), "measured as my-board, but the kit was made for apple-m4"),
        (json.dumps({**raw, "measured": [{**item, "sha256": "0" * 64}]}), "not a file of the kit"),
        (json.dumps({**raw, "measured": [{**item, "file": "models/other.onnx"}]}), "not a file of the kit"),
        (json.dumps({**raw, "measured": [{**item, "rounds": [{**one, "tpot_s": "soon"}]}]}), r"rounds\[0\]\.tpot_s"),
        (json.dumps({**raw, "measured": [{**item, "rounds": [{**one, "tpot_s": [-1.0]}]}]}), "tpot_s"),
        (
            json.dumps({**raw, "measured": [{**item, "rounds": [], "error": "no memory"}]}),
            "contains no measurement: .*no memory",
        ),
        (json.dumps({**raw, "threads": 0}), "threads"),
        (json.dumps({name: value for name, value in raw.items() if name != "kit"}), "kit: this field is missing"),
        (json.dumps({**raw, "schema": "chipwise.kit_results/9"}), "kit_results/1"),
        (json.dumps(raw["kit"]), "this is the kit's list of models; import what its script wrote"),
    ]
    for text, message in cases:
        path = home / "kit-results.json"
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            chipwise.import_measurements(path)
    assert MeasurementStore().entries() == []


def test_a_kit_for_one_machine_is_refused_from_another(home: Path, raw: dict[str, Any]) -> None:
    raw["device"] = None
    raw["kit"] = sealed(raw["kit"] | {"device": None, "machine": "Some CPU, 4 cores"})
    with pytest.raises(SpecError, match="measured on Apple M4, 10 cores, but the kit was made for Some CPU, 4 cores"):
        read_results(write(home, raw))


@pytest.mark.parametrize(
    ("stated", "cpu", "model", "gpus", "same"),
    [
        ("apple-m4", "Apple M4", None, (), True),
        ("apple-m4", "Apple M4 Pro", None, (), False),
        ("snapdragon-8-elite", "QTI SM8750", None, (), True),
        ("raspberry-pi-4", "Cortex-A76", "Raspberry Pi 5 Model B Rev 1.0", (), False),
        ("raspberry-pi-5", "Cortex-A76", "Raspberry Pi 5 Model B Rev 1.0", (), True),
        ("jetson-orin-nano", "ARMv8", "NVIDIA Jetson AGX Orin Developer Kit", (), False),
        ("h100-sxm", "AMD EPYC 9654", None, ("NVIDIA GeForce RTX 4090",), False),
        ("h100-sxm", "AMD EPYC 9654", None, ("NVIDIA H100 80GB HBM3",), True),
        ("h100-sxm", "AMD EPYC 9654", None, (), True),  # its GPU could not be read: nothing speaks against it
        ("my-board", "anything", None, (), True),  # nobody knows what it must look like
        ("raspberry-pi-4", "aarch64", None, (), True),
    ],
)
def test_machines_that_cannot_be_the_stated_one(stated, cpu, model, gpus, same) -> None:
    machine = KitMachine(name=cpu, cpu=cpu, cores=8, model=model, gpus=gpus)
    assert (another_device(stated, machine) is None) is same


def test_what_a_kit_cannot_measure_is_refused(home: Path) -> None:
    io.save(ARCH, home / "tiny.json")
    with pytest.raises(Unsupported, match=r"a kit measures onnxruntime and llama\.cpp, not openvino"):
        chipwise.kit(home / "tiny.json", runtime="openvino")
    with pytest.raises(InputError, match="candidates"):
        chipwise.kit(home / "tiny.json", candidates=-1)
    path = home / "lines.jsonl"
    path.write_text("")
    with pytest.raises(InputError, match="llama-bench"):
        chipwise.import_measurements(path, model="gpt2")


def test_a_new_kit_in_the_same_folder_replaces_the_old_one(home: Path) -> None:
    kit = packed(home, runtime="llama.cpp")
    packed(home)
    assert [path.name for path in (kit / "models").iterdir()] == ["model.onnx"]
    assert [item.runtime for item in read_kit(kit / "kit.json").models] == ["onnxruntime"]
