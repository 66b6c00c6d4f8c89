"""A search with the wider choices of a space and one without them, with equal CPU time, several seeds.

    python benchmarks/wider_space.py --work FOLDER --seeds 0 1 2 --cpu 300 --out benchmarks/wider-space-DATE.csv

The space is that of examples/clinic.yaml. ``as it is`` leaves it so. ``wider`` adds feed-forwards of block-diagonal
matrices, LayerNorm, and norms after blocks or on both sides. ``without convolutions`` has no convolutions, which
exclude layers without attention; ``any order`` adds such layers to it, layers without a feed-forward, and all of
``wider``. Each search chooses designs and trains them for its CPU time; text that selected nothing judges the exported
file. A search that was stopped goes on, and finished ones are not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

import resumable_rows
from finished import finished

NORMS: dict[str, object] = {"norm": ["rmsnorm", "layernorm"], "norm_place": ["pre", "post", "both"]}
GROUPED = ["relu-g4", "swiglu-g4"]
COLUMNS = (
    "space", "seed", "cpu_s", "bits_per_byte", "tpot_p50_us", "ttft_p50_us", "parameters", "limits_held", "design",
)  # fmt: skip


def wider(space: dict[str, Any]) -> None:
    """Grouped feed-forwards, kinds and places of norms."""
    space |= NORMS
    space["layer"]["ffn"] += GROUPED


def unconvolved(space: dict[str, Any]) -> None:
    """No convolutions."""
    del space["conv"]


def any_order(space: dict[str, Any]) -> None:
    """Layers of attention alone and of feed-forward alone, and all that ``wider`` adds; no convolutions."""
    unconvolved(space)
    wider(space)
    space["layer"]["heads"].insert(0, "none")
    space["layer"]["ffn"].insert(0, "none")


SPACES = {"as it is": lambda space: None, "wider": wider, "without convolutions": unconvolved, "any order": any_order}


def searched(name: str, seed: int, cpu_s: float, work: Path) -> dict[str, str]:
    """The winner of one search, as exported and measured."""
    run = yaml.safe_load(Path("examples/clinic.yaml").read_text())
    SPACES[name](run["space"])
    run |= {"seed": seed, "prior": "shipped", "budget": {"cpu": f"{cpu_s:g} s", "workers": 2}}
    folder = work / f"{name.replace(' ', '-')}-{seed}"
    file = work / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(run))
    record = finished(file, folder)
    best = record.trial(record.winner)
    assert best is not None
    assert best.measured is not None
    return {
        "space": name, "seed": str(seed), "cpu_s": f"{sum(record.budget.spent.values()):.0f}",
        "bits_per_byte": f"{best.test_loss:.4f}", "tpot_p50_us": f"{1e6 * best.measured['tpot_p50']:.1f}",
        "ttft_p50_us": f"{1e6 * best.measured['ttft_p50']:.1f}", "parameters": str(best.parameters),
        "limits_held": "yes" if best.feasible else "no", "design": best.summary,
    }  # fmt: skip


def main() -> None:
    """Runs what is missing and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--cpu", type=float, default=300.0, help="CPU seconds of a search")
    parser.add_argument("--out", type=Path, required=True, help="CSV file; rows that it has are kept")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = resumable_rows.read(args.out)
    done = {(row["space"], int(row["seed"])) for row in rows}
    for seed in args.seeds:
        for name in args.spaces:
            if (name, seed) not in done:
                resumable_rows.add(rows, searched(name, seed, args.cpu, args.work), args.out, COLUMNS)
    for name in args.spaces:
        losses = [float(row["bits_per_byte"]) for row in rows if row["space"] == name]
        times = [float(row["tpot_p50_us"]) for row in rows if row["space"] == name]
        print(f"{name:22} {fmean(losses):.3f} +- {stdev(losses):.3f} bits a byte, {fmean(times):.0f} us a token")


if __name__ == "__main__":
    main()
