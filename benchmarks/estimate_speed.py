"""Full ``estimate`` rows a second through a table, on one core.

    python benchmarks/estimate_speed.py --rows 20000

Rows mix models, devices, runtimes, formats, plans, batches and lengths at random (seeded), as a planner's spreadsheet
does. Printed: rows a second by wall clock and by CPU time, reading and writing the files included, and the start.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chipwise.predict.served.deployment import Deployment

MODELS = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "openai/gpt-oss-120b", "gpt2")
DEVICES = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "mi300x")


def write(path: Path, rows: int, *, seed: int) -> None:
    """A table of random requests."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row_id", "model", "device", "runtime", "weights", "tp", "batch", "isl", "osl"])
        for i in range(rows):
            writer.writerow(
                [
                    i,
                    draw.choice(MODELS),
                    draw.choice(DEVICES),
                    draw.choice(["vllm", "sglang", "trtllm"]),
                    "bf16",
                    draw.choice([1, 2, 4, 8]),
                    draw.randint(1, 256),
                    draw.randint(16, 8192),
                    draw.randint(16, 2048),
                ]
            )


def main() -> None:
    """Times the start, a table and the help."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    from chipwise.predict.served.estimate import cost_of
    from chipwise.predict.served.request import Request

    cost_of(Request(model="gpt2", deployment=Deployment(device="h100-sxm")))
    print(f"import, load and first answer: {time.perf_counter() - start:.2f} s")
    from chipwise import api

    with tempfile.TemporaryDirectory() as room:
        source, out = Path(room) / "rows.csv", Path(room) / "out.csv"
        write(source, args.rows, seed=args.seed)
        wall, cpu = time.perf_counter(), time.process_time()
        rows, failed = api.estimate_table(source, out)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{rows} rows, {failed} refused: {rows / wall:,.0f} rows/s by the clock, {rows / cpu:,.0f} rows/s of CPU time"
    )
    helped = time.perf_counter()
    subprocess.run([sys.executable, "-m", "chipwise", "--help"], check=True, capture_output=True)
    print(f"chipwise --help: {time.perf_counter() - helped:.2f} s")


if __name__ == "__main__":
    main()
