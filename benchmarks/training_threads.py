"""Training steps by one and by two threads: CPU time and waiting time of a step, in alternating rounds.

    python benchmarks/training_threads.py --out FILE.csv      # about four minutes on two idle cores

Designs of ``examples/clinic.yaml``, its text and recipe. A round times ``STEPS`` steps with each number of threads; the
medians of all steps are compared. Columns: design, threads, steps, medians of CPU time and waiting time of a step in
milliseconds, and both as multiples of one thread's.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of, summary
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.trainer import Run
from provenance import COLUMNS as ORIGIN
from provenance import here

ROUNDS, STEPS, THREADS = 8, 10, (1, 2)
COLUMNS = ("design", "threads", "steps", "cpu_ms", "wall_ms", "cpu_ratio", "wall_ratio")
SIZES = ((64, 2, 2048), (128, 2, 4096), (128, 4, 8192), (192, 5, 8192))  # width, layers, vocabulary


def choices(width: int, depth: int, vocabulary: int) -> dict[str, Any]:
    """A decoder with equal layers and SwiGLU."""
    layer = {"heads": width // 32, "kv_heads": width // 32, "ffn": "swiglu", "ffn_width": 3 * width}
    return {
        "d_model": width, "depth": depth, "vocab_size": vocabulary, "head_size": 32, "tie_embeddings": True,
        "weights": "int8", "sharing": "none", "conv": "none", "layers": [layer] * depth,
    }  # fmt: skip


def timed(run: Run) -> tuple[float, float]:
    """CPU seconds and waiting time of a step."""
    cpu, wall = time.process_time(), time.perf_counter()
    run._step()
    run.at.steps += 1
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Times steps and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_run(options.spec)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        task = spec.task_settings.open(
            spec.data, base=Path(spec.folder), folder=Path(folder) / "corpus", space=spec.space
        )
        task.prepare()
        for size in SIZES:
            design = design_of(choices(*size), spec=spec.space, name="timed")
            data, recipe = task.data(design.arch).load(), Recipe(**task.recipe)
            runs = {
                threads: Run(
                    design.arch, data, 1e6, 0, Path(folder) / str(threads), recipe, time.process_time,
                    counted=True, threads=threads,
                )
                for threads in THREADS
            }  # fmt: skip
            found: dict[int, list[tuple[float, float]]] = {threads: [] for threads in THREADS}
            for number in range(ROUNDS + 1):
                for threads, run in runs.items():
                    times = [timed(run) for _ in range(STEPS)]
                    found[threads] += times if number else []  # the first round fills caches
            medians = {
                threads: [statistics.median(part) for part in zip(*each, strict=True)]
                for threads, each in found.items()
            }
            for threads, (cpu_s, wall_s) in medians.items():
                ratios = cpu_s / medians[1][0], wall_s / medians[1][1]
                values = (f"{cpu_s * 1e3:.1f}", f"{wall_s * 1e3:.1f}", *(f"{ratio:.3f}" for ratio in ratios))
                rows.append((summary(design), threads, ROUNDS * STEPS, *values))
                print(*rows[-1], flush=True)
            for run in runs.values():
                run.close()
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *ORIGIN), lineterminator="\n")
        writer.writeheader()
        writer.writerows(dict(zip(COLUMNS, row, strict=True)) | here() for row in rows)


if __name__ == "__main__":
    main()
