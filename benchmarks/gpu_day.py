"""Every check of the project that needs a GPU, in pieces of less than ten minutes, with one command.

    python benchmarks/gpu_day.py                    # all of them, into gpu-day/<check>.csv
    python benchmarks/gpu_day.py --list             # what there is, and what each needs
    python benchmarks/gpu_day.py --only kernels,packing --out DIR
    python benchmarks/gpu_day.py --fake             # the same code on this machine's CPU: toy sizes, no figure counts

Each check runs in a process of its own, so one that hangs or fails costs no other; those whose CSV is there are passed
over (``--again`` repeats them). ``summary.csv`` says how each ended. Exit code 0: all ended well; 1: one failed; 4:
there is no GPU here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from chipwise.core.csvfile import write_rows

sys.path.insert(0, str(Path(__file__).parent))
from gpu_checks import CHECKS, Bench, gpu_here
from provenance import stamp

NO_GPU = 4
LIMIT_S = 570.0  # of one check; a machine that is lent gives ten minutes
COLUMNS = ("check", "outcome", "wall_s", "rows", "why")


def main() -> int:
    """Runs the checks that the command line names; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the checks and end")
    parser.add_argument("--only", help="names of checks, with commas between")
    parser.add_argument("--out", type=Path, default=Path("gpu-day"), help="folder of the CSV files")
    parser.add_argument("--fake", action="store_true", help="toy sizes on this machine's CPU, to try the code")
    parser.add_argument("--again", action="store_true", help="repeat checks whose CSV is there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # the process of one check
    args = parser.parse_args()
    if args.inside:
        return inside(args.inside, args.out, fake=args.fake)
    if args.list:
        for name, check in CHECKS.items():
            print(f"{name:18} {check.what} [needs {check.needs}]")
        return 0
    names = args.only.split(",") if args.only else list(CHECKS)
    if strange := [name for name in names if name not in CHECKS]:
        parser.error(f"no check is called {strange[0]}; there are {', '.join(CHECKS)}")
    if not args.fake and not gpu_here():
        print("no CUDA device is found here: nothing was checked (--fake tries the code on the CPU)", file=sys.stderr)
        return NO_GPU
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [one(name, args.out, fake=args.fake, again=args.again) for name in names]
    write_rows(args.out / "summary.csv", rows, COLUMNS)
    stamp(args.out / "summary.csv")
    return int(any(row["outcome"] == "failed" for row in rows))


def one(name: str, out: Path, *, fake: bool, again: bool) -> dict[str, object]:
    """Runs one check in a process and returns its line of the summary."""
    row: dict[str, object] = {"check": name, "wall_s": 0.0, "rows": 0, "why": ""}
    path = out / f"{name}.csv"
    if path.exists() and not again:
        return row | {"outcome": "there", "rows": _rows(path)}
    if why := CHECKS[name].lacks(fake=fake):
        print(f"{name}: passed over, {why}", flush=True)
        return row | {"outcome": "passed over", "why": why}
    command = [sys.executable, __file__, "--inside", name, "--out", str(out), *(["--fake"] if fake else [])]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        failed = done.returncode != 0
        why = (done.stderr.strip().splitlines() or ["no message"])[-1] if failed else ""
    except subprocess.TimeoutExpired:
        failed, why = True, f"took longer than {LIMIT_S:.0f} s"
    wall_s = round(time.monotonic() - begin, 1)
    outcome = "failed" if failed else "done"
    print(f"{name}: {outcome} in {wall_s:.0f} s{': ' + why if why else ''}", flush=True)
    return row | {"outcome": outcome, "wall_s": wall_s, "rows": _rows(path), "why": why}


def inside(name: str, out: Path, *, fake: bool) -> int:
    """The process of one check: its rows as CSV."""
    rows = CHECKS[name].run(Bench(fake=fake, folder=out / "work" / name))
    columns = list(dict.fromkeys(column for row in rows for column in row))
    write_rows(out / f"{name}.csv", rows, columns)
    stamp(out / f"{name}.csv")
    return 0


def _rows(path: Path) -> int:
    return max(0, len(path.read_text().splitlines()) - 1) if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
