"""Every bundled model explained on every device: does any crash, and how long does the slowest take?

    OMP_NUM_THREADS=1 python benchmarks/explain_speed.py [--models N] [--devices N]

Refusals with a reason (a format without a rate, a plan that does not divide) are answers; anything else is a crash.
Then five models are compared on sixty devices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback

from chipwise import api
from chipwise.core.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.spec import families

COMPARED = ("gpt2", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-2-7b-hf", "Qwen/Qwen3-8B", "google/gemma-2-9b")


def spread(names: list[str], count: int) -> list[str]:
    """``count`` of the names, evenly over the list."""
    return [names[i * len(names) // count] for i in range(min(count, len(names)))]


def main() -> None:
    """Runs it; exits with 1 where something crashed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=1000)
    wanted = parser.parse_args()
    models, devices = spread(families.names(), wanted.models), spread(datasheet.names(), wanted.devices)
    api.explain("gpt2", device=devices[0])  # what is loaded once
    took: list[tuple[float, float, str]] = []  # seconds, CPU seconds, what
    refused, crashed = 0, 0
    for model in models:
        for device in devices:
            started, cpu_started = time.perf_counter(), time.process_time()
            try:
                api.explain(model, device=device)
            except ChipwiseError:
                refused += 1
            except Exception:
                crashed += 1
                print(f"{model} on {device}:\n{traceback.format_exc(limit=-3)}", file=sys.stderr)
            cpu_s = time.process_time() - cpu_started
            took.append((time.perf_counter() - started, cpu_s, f"{model} on {device}"))
    slowest, busiest = max(took), max(took, key=lambda each: each[1])
    print(f"{len(took)} explained, {refused} refused with a reason, {crashed} crashed")
    print(f"median {statistics.median(s for s, _, _ in took):.2f} s, slowest {slowest[0]:.2f} s ({slowest[2]})")
    print(f"most CPU time {busiest[1]:.2f} s ({busiest[2]}): what a quiet machine would take")
    started = time.perf_counter()
    api.compare(COMPARED, devices=datasheet.names()[:60])
    print(f"five models on sixty devices compared in {time.perf_counter() - started:.2f} s")
    sys.exit(1 if crashed else 0)


if __name__ == "__main__":
    main()
