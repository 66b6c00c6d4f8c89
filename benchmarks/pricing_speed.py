#!/usr/bin/env python3
"""Candidates per second priced from a space's table, on one core.

    python benchmarks/pricing_speed.py examples/clinic.yaml --repeats 7 --out pricing_speed.csv

A candidate's price is its TTFT, TPOT, peak memory and parameters. The rate is of CPU time, so that what else the
machine does shows as little as it can; every repetition is printed. The machine's calibrated profile is read from
``--profile``; without one, prices are those of a data sheet (``--device``). Columns: space, price, rows, repeat,
prices_per_cpu_s, build_cpu_s.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from chipwise.core.files import build, read_yaml
from chipwise.design.prices.price_table import Pricer, PriceTable, ProfilePricer
from chipwise.design.targets.served_pricer import ServedPricer
from chipwise.hardware import datasheet
from chipwise.hardware.device import MachineProfile
from chipwise.hardware.runtime import default_runtime
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request
from provenance import stamp


def _pricer(profile: Path | None, device: str, workload: Workload) -> tuple[str, Pricer]:
    if profile is not None:
        return "calibrated profile", ProfilePricer(MachineProfile.load(profile))
    sheet = datasheet.load(device)
    lengths = {"prompt_tokens": workload.prompt_tokens, "new_tokens": workload.new_tokens, "batch": workload.batch}
    template = Request(model="", deployment=Deployment(device=sheet, runtime=default_runtime(sheet)), **lengths)
    return device, ServedPricer(template, sheet)


def main() -> None:
    """Prices and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", type=Path, help="a file with a space: a search's file will do")
    parser.add_argument("--profile", type=Path, help="profile.json of a run")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = read_yaml(options.space)
    space = SearchSpace(build(SpaceSpec, data.get("space", data), file=str(options.space)))
    workload = build(Workload, data.get("workload", {}))
    name, pricer = _pricer(options.profile, options.device, workload)
    begun = time.process_time()
    table = PriceTable(space, workload, pricer)
    built = time.process_time() - begun
    rows = space.sample(options.rows, np.random.default_rng(0))
    rates = []
    for _ in range(options.repeats):
        begun = time.process_time()
        table(rows)
        rates.append(len(rows) / (time.process_time() - begun))
    print(
        f"{options.space.name}, {name}: the table took {built:.2f} CPU-s; prices a CPU second, {len(rows):,} at a time:"
    )
    print("  " + "  ".join(f"{rate:,.0f}" for rate in rates))
    print(f"  median {np.median(rates):,.0f}, least {min(rates):,.0f}, most {max(rates):,.0f}")
    if options.out is not None:
        with options.out.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("space", "price", "rows", "repeat", "prices_per_cpu_s", "build_cpu_s"))
            for i, rate in enumerate(rates):
                writer.writerow((options.space.name, name, len(rows), i, f"{rate:.0f}", f"{built:.3f}"))
        stamp(options.out)


if __name__ == "__main__":
    main()
