"""Small models whose bytes fit a cache: seconds of a token measured here, and predicted from a data sheet.

    python benchmarks/working_sets.py --device xeon-8592-plus:1-core --out working-sets.csv

Uniform decoders with random weights in ONNX Runtime on one thread. Each has the fastest of ``--rounds`` medians of
``chipwise.measure``, because other programs share the machine. ``memory_s`` is the prediction if all bytes came from
memory, ``predicted_s`` that from the level which holds them, and ``level`` its name.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

import chipwise
from chipwise.core.files import write_yaml
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import CORES
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.predict.kernels import caches
from provenance import stamp

SHAPES = ((128, 2), (256, 2), (512, 1), (512, 4))  # width, depth
PROMPT, NEW = 16, 96


def arch_of(width: int, depth: int) -> ArchSpec:
    """A decoder."""
    return uniform(
        vocab_size=512, d_model=width, depth=depth, heads=width // 64, ffn_width=4 * width, max_tokens=256, gated=True
    )


def measured_s(arch: ArchSpec, weights: str, rounds: int) -> float:
    """Seconds of a token."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spec.yaml")
        write_yaml(path, arch.to_dict())
        asked = {"weights": weights, "prompt": PROMPT, "new": NEW, "keep": False}
        taken = [chipwise.measure(path, **asked).measurement for _ in range(rounds)]
    return min(float(np.median(each.tpot_s)) for each in taken)


def main() -> None:
    """Measures every model and writes a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    held, rows = caches.caches_of(datasheet.load(args.device), CORES), []
    for weights in ("int8", "fp32"):
        for width, depth in SHAPES:
            arch = arch_of(width, depth)
            asked = {"device": args.device, "runtime": "onnxruntime", "weights": weights, "prompt": PROMPT, "new": NEW}
            found = chipwise.estimate(arch, **asked)
            with mock.patch.object(caches, "saved_share", lambda memory_s, device, stack: 0 * memory_s):
                whole = chipwise.estimate(arch, **asked)
            read = sum(cost.work.bytes * cost.count for cost in found.decode)
            row = {"weights": weights, "width": width, "depth": depth, "read_bytes": read}
            row["level"] = next((cache.name for cache in held if read <= cache.capacity_bytes), "memory")
            row |= {"measured_s": measured_s(arch, weights, args.rounds)}
            rows.append(row | {"predicted_s": found.tpot_s, "memory_s": whole.tpot_s})
            print(rows[-1], flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    stamp(args.out)
    for name in ("predicted_s", "memory_s"):
        errors = [abs(row[name] / row["measured_s"] - 1) for row in rows]
        print(f"{name}: median error {np.median(errors):.1%}")


if __name__ == "__main__":
    main()
