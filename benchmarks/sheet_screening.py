"""How fast a target that is known by its data sheet prices candidates: the designs of shipped examples.

    python benchmarks/sheet_screening.py --out sheet-screening.csv

Columns: example, device, learnt (measurements the target has learnt from), designs, table_s (prices of the blocks,
once), seconds, per_s. Seconds are CPU seconds of this process, one thread.
"""

from __future__ import annotations

import argparse
import time
from importlib.resources import files
from pathlib import Path

import numpy as np

from chipwise.core.csvfile import write_rows
from chipwise.run import load_run
from chipwise.space import SearchSpace
from chipwise.targets.sheet import sheet_target

EXAMPLES = ("phone", "laptop", "orin", "h100-1b")
ROWS, PART, LEARNT = 400_000, 50_000, 12


def main() -> None:
    """Prices each example's space, before and after measurements; prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for example in EXAMPLES:
        spec = load_run(Path(str(files("chipwise").joinpath("examples", f"{example}.yaml"))))
        space = SearchSpace(spec.space)
        target = sheet_target(spec, space)
        drawn = space.sample(ROWS, np.random.default_rng(0))
        for learnt in (0, LEARNT):
            if learnt:
                designs = [space.design(row) for row in drawn[:learnt]]
                taken = ("ttft_p50", "tpot_p50", "peak_memory")
                target.learn([(d, {m: 1.3 * float(target.predict(d)[m][0] or 0.0) for m in taken}) for d in designs])
            begun = time.process_time()
            target.metrics(drawn[:1])
            table_s, begun = time.process_time() - begun, time.process_time()
            for start in range(0, ROWS, PART):
                target.metrics(drawn[start : start + PART])
            seconds = time.process_time() - begun
            rows.append(
                {
                    "example": example,
                    "device": spec.target.device,
                    "learnt": learnt,
                    "designs": ROWS,
                    "table_s": f"{table_s:.2f}",
                    "seconds": f"{seconds:.3f}",
                    "per_s": f"{ROWS / seconds:.3g}",
                }
            )
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write_rows(options.out, rows, list(rows[0]))


if __name__ == "__main__":
    main()
