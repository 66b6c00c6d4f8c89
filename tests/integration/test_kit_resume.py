"""From expected to measured: a search for a chip that is not here, its kit, its results, and the run resumed.

What a person sees is read from the page after a browser drew it.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import chipwise

from chipwise.core.files import read_json
from chipwise.design.report.record import load

SPEC = """
name: board
target: {device: jetson-orin-nano, runtime: llama.cpp}
workload: {prompt_tokens: 16, new_tokens: 17}
constraints: {tpot_p50: <= 2 ms, peak_memory: <= 200 MB, power: <= 25 W}
objectives: {bits_per_byte: minimize, tpot_p50: minimize}
space:
  d_model: [32, 64, 96]
  depth: [1, 2]
  vocab_size: [512]
  head_size: [32]
  layer: {heads: [2], kv_heads: [1, 2], ffn: [swiglu], ffn_width: [64, 128, 256]}
  weights: [int8]
  max_tokens: 128
data: {source: files, paths: ["package:chipwise/core/*.py"], entries: blank-lines, licence: Apache-2.0}
train: {precision: fp32}
budget: {tokens: 160k, final: 30k, workers: 2}
seed: 0
"""
BENCH = """#!{python}
# llama-bench as a Jetson would answer: 0.1 ms a prompt token; a new token in proportion to the file, {slow} times that
# of one file.
import json, os, sys
value = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt, new, repeats = int(value["-p"]), int(value["-n"]), int(value["-r"])
factor = {slow} if os.path.basename(value["-m"]) == "{slow_file}" else 1
each = int(100_000 * prompt + factor * os.path.getsize(value["-m"]) / 2 * new)
row = {{"build_commit": "abc", "build_number": 7, "cpu_info": "ARMv8", "gpu_info": "Orin", "backends": "CUDA",
    "model_filename": value["-m"], "model_type": "llama", "model_size": os.path.getsize(value["-m"]), "n_batch": 2048,
    "n_ubatch": 512, "n_threads": int(value["-t"]), "type_k": "f16", "type_v": "f16",
    "n_gpu_layers": int(value["-ngl"]), "n_prompt": prompt, "n_gen": new, "n_depth": int(value.get("-d", 0)),
    "test_time": "2026-01-01T00:00:00Z", "avg_ns": each, "stddev_ns": 1, "avg_ts": 1e9 * (prompt + new) / each,
    "stddev_ts": 0.1, "samples_ns": [each + i for i in range(repeats)], "samples_ts": [1.0] * repeats}}
print(json.dumps([row]))
"""
NANO = {"name": "Orin Nano", "cpu": "ARMv8 Processor", "cores": 6, "model": "NVIDIA Jetson Orin Nano Developer Kit"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kit")
    (folder / "board.yaml").write_text(SPEC)
    searched(folder)
    return folder


def searched(folder: Path, *options: str) -> str:
    done = chipwise("search", folder / "board.yaml", "--out", folder / "run", *options, timeout_s=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def measured(folder: Path, *, slow_file: str = "", slow: float = 1.0) -> Path:
    """Runs the kit with a fake llama-bench, then with the files of a board's machine and power sensors."""
    done = chipwise("kit", folder / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    there = Path(shutil.copytree(folder / "run" / "kit", folder / "there", dirs_exist_ok=True))
    program = folder / "llama-bench"
    program.write_text(BENCH.format(python=sys.executable, slow_file=slow_file, slow=slow))
    program.chmod(0o755)
    arguments = [
        "--llama-bench",
        str(program),
        "--rounds",
        "2",
        "--prefills",
        "5",
        "--steps",
        "20",
        "--out",
        "out.json",
    ]
    done = subprocess.run(
        [sys.executable, "-I", "kit.py", *arguments],
        cwd=there,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "power: " in done.stdout  # read from something, or why not
    raw = read_json(there / "out.json")
    for item in raw["measured"]:
        for one in item["rounds"]:
            one |= {"energy_j": 9.0 * one["wall_s"], "energy_from": "VDD_IN (board sensors)"}
    (there / "out.json").unlink()
    path = folder / "kit-results.json"
    path.write_text(json.dumps({**raw, "machine": NANO}))
    return path


def visible(visit, page: Path) -> str:
    """The visible text of the page on one line."""
    document, console = visit(page)
    assert console == []
    document = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", document)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", document)).split())


def section(text: str, start: str, end: str) -> str:
    return text[text.rindex(start) : text.index(end, text.rindex(start))]


@pytest.mark.browser
def test_expected_then_measured(run: Path, visit) -> None:
    folder = run / "run"
    before = load(folder / "record.json")
    text = visible(visit, folder / "report.html")
    assert "predicted, nothing measured there" in text
    limits = section(text, "Constraints Checked for the winner", "Winner and reference design The")
    assert re.search(r"≤ 2 ms [\d.]+ [mµ]s \([\d.]+ to [\d.]+\) not measured unknown (expected|at risk), ", limits)
    assert "Nothing was measured" in limits
    tiles = section(text, "The winner is trial", "Constraints Checked for the winner")
    assert re.search(r"Time per output token [\d.]+ [mµ]s P50 [\d.]+ [mµ]s P99 expected", tiles)
    assert "exported int8 artefact" in tiles
    assert " measured" not in tiles.replace("not measured", "").replace("measured within", "")
    assert (folder / "winner" / "model.gguf").is_file()

    # the winner turns out to be too slow: the best of the others takes its place
    number = before.winner
    others = [t.number for t in before.trials if t.test_loss is not None or t.quantised_loss is not None]
    results = measured(run, slow_file=f"{number}.gguf", slow=200.0)
    done = chipwise("measurements", "import", results)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = searched(run, "--resume")
    after = load(folder / "record.json")
    assert set(after.trial(number).measured) >= {"ttft_p50", "tpot_p50", "peak_memory", "power"}
    assert after.trial(number).predicted == before.trial(number).predicted
    assert after.winner in others
    assert after.winner != number
    assert "measured" in shown

    text = visible(visit, folder / "report.html")
    assert "measured there by a kit" in text
    tiles = section(text, "The winner is trial", "Constraints Checked for the winner")
    limits = section(text, "Constraints Checked for the winner", "Winner and reference design The")
    assert re.search(r"Time per output token [\d.]+ [mµ]s P50 unknown P99 measured", tiles)
    assert re.search(r"≤ 25 W .* 9 W [\d]+ % met", limits)
    assert re.search(r"≤ 2 ms .* met", limits)
    assert "expected" not in limits
    assert "Nothing was measured" not in limits
    card = (folder / "card.md").read_text()
    assert "P50 " in card
    assert "(measured)" in card


@pytest.mark.browser
def test_a_search_on_this_machine_shows_measurements(smoke_run: Path, visit) -> None:
    text = visible(visit, smoke_run / "report.html")
    tiles = section(text, "The winner is trial", "Constraints Checked for the winner")
    limits = section(text, "Constraints Checked for the winner", "Winner and reference design The")
    assert re.search(r"Time per output token [\d.]+ [mµ]s P50 [\d.]+ [mµ]s P99 measured", tiles)
    assert re.search(r"Parameters [\d.]+ [kM]? counted", tiles)
    assert "expected" not in tiles + limits
    assert re.search(r"≤ 300 MB [\d.]+ MB .*[\d.]+ MB [\d]+ % met", limits)
