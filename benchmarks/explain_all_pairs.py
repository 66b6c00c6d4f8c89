"""Every bundled model explained on every device, a row each, in pieces that go on where the last one stopped.

    OMP_NUM_THREADS=1 python benchmarks/explain_all_pairs.py OUT.csv [--seconds 540] [--part 1/2]

A row says the model, the device, the seconds (and CPU seconds) that the answer took, what bounds decode (of an
encoder its one pass), how many pieces of advice were sure gains, and the class of the error where there is no
answer: a refusal with a reason is an answer, ``crash`` is not. Exits with 1 where something crashed.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
import traceback
from pathlib import Path

from chipwise import api
from chipwise.core.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.spec import families

COLUMNS = ("model", "device", "seconds", "cpu_s", "verdict", "advice", "error")


def answered(path: Path) -> list[dict[str, str]]:
    """The rows that a file holds already."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def explained(model: str, device: str) -> dict[str, object]:
    """One row."""
    started, cpu_started = time.perf_counter(), time.process_time()
    verdict, advice, error = "", "", ""
    try:
        found = api.explain(model, device=device)
        verdict, advice = found.phases[-1].verdict.split(":")[0], str(len(found.advice))
    except ChipwiseError as problem:
        error = type(problem).__name__
    except Exception:
        error = "crash"
        print(f"{model} on {device}:\n{traceback.format_exc(limit=-4)}", file=sys.stderr)
    return {
        "model": model,
        "device": device,
        "seconds": f"{time.perf_counter() - started:.3f}",
        "cpu_s": f"{time.process_time() - cpu_started:.3f}",
        "verdict": verdict,
        "advice": advice,
        "error": error,
    }


def summary(rows: list[dict[str, str]]) -> str:
    """What the file says in a few lines."""
    errors: dict[str, int] = {}
    for row in rows:
        if row["error"]:
            errors[row["error"]] = errors.get(row["error"], 0) + 1
    slowest, busiest = (max(rows, key=lambda row, name=name: float(row[name])) for name in ("seconds", "cpu_s"))  # type: ignore[misc]
    return "\n".join(
        (
            f"{len(rows)} pairs, {len(rows) - sum(errors.values())} explained, without an answer: {errors or 'none'}",
            f"seconds: median {statistics.median(float(row['seconds']) for row in rows):.2f}, "
            f"slowest {slowest['seconds']} ({slowest['model']} on {slowest['device']})",
            f"CPU seconds: median {statistics.median(float(row['cpu_s']) for row in rows):.2f}, "
            f"most {busiest['cpu_s']} ({busiest['model']} on {busiest['device']})",
        )
    )


def main() -> None:
    """Runs a piece."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0, help="stop after so many")
    parser.add_argument("--part", default="1/1", help="which of so many parts of the devices")
    wanted = parser.parse_args()
    part, parts = map(int, wanted.part.split("/"))
    devices = datasheet.names()[part - 1 :: parts]
    rows = answered(wanted.out)
    done = {(row["model"], row["device"]) for row in rows}
    left = [(model, device) for device in devices for model in families.names() if (model, device) not in done]
    api.explain("gpt2", device=devices[0])  # what is loaded once
    started = time.perf_counter()
    with wanted.out.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        for model, device in left:
            if time.perf_counter() - started > wanted.seconds:
                break
            writer.writerow(explained(model, device))
            file.flush()
    rows = answered(wanted.out)
    print(summary(rows))
    sys.exit(1 if any(row["error"] == "crash" for row in rows) else 0)


if __name__ == "__main__":
    main()
