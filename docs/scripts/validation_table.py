"""Writes the first table of docs/notes/validation.md: errors of predictions for single-user runs, by class of chip.

usage: validation_table.py TRUTH PREDICTIONS

TRUTH is edge.csv.gz; PREDICTIONS is the file that ``chipwise validate edge --leave-out device`` wrote. Two comments in
the page enclose the table. Errors are medians of |predicted / measured - 1|.
"""

from __future__ import annotations

import csv
import gzip
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).parents[1] / "notes" / "validation.md"
START, END = "<!-- one user: written by docs/scripts/validation_table.py -->", "<!-- one user: end -->"
CLASSES = {
    "NVIDIA client": "GeForce and RTX workstation GPUs",
    "NVIDIA data centre": "NVIDIA data-centre GPUs, in llama.cpp",
    "NVIDIA embedded": "Jetson",
    "Apple": "Apple GPUs",
    "AMD GPU": "Radeon, Instinct, Ryzen AI Max",
    "Intel GPU": "Intel GPUs, discrete and integrated",
    "phone/SBC": "phones, boards, NPUs",
    "x86 CPU": "x86 processors",
    "ARM server": "Arm server processors",
    "Apple CPU": "Apple's processors",
}
COLUMNS = {"decode": "decode_tokens_per_s", "prompt": "prefill_tokens_per_s"}


def table(truth: Path, predictions: Path) -> str:
    """Computes the table, as Markdown."""
    with gzip.open(truth, "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quality"] != "doubtful"]
    with predictions.open(encoding="utf-8") as file:
        found = {row["row_id"]: row for row in csv.DictReader(file)}
    chips: dict[str, set[str]] = defaultdict(set)
    misses: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        kind, answer = row["device_class"], found.get(row["row_id"], {})
        for question, column in COLUMNS.items():
            if not (float(row[column] or 0) > 0 and answer.get(column)):
                continue
            chips[kind].add(row["device"])
            measured = float(row[column])
            misses[kind, question, "error"].append(abs(float(answer[column]) / measured - 1))
            if answer.get(f"rival_{column}"):
                misses[kind, question, "rival"].append(abs(float(answer[f"rival_{column}"]) / measured - 1))
            inside = float(answer[f"low_{column}"]) <= measured <= float(answer[f"high_{column}"])
            misses[kind, question, "inside"].append(float(inside))
    lines = [
        "| one user, chip left out of the fit | chips | decode: error (rule) | decode: runs, inside the 90 % interval "
        "| prompt: error (rule) | prompt: runs, inside the 90 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for kind, title in CLASSES.items():
        if not chips[kind]:
            continue
        cells = [title, str(len(chips[kind]))]
        for question in COLUMNS:
            error, rival, inside = (misses[kind, question, name] for name in ("error", "rival", "inside"))
            if not error:
                cells += ["", ""]
                continue
            rule = f" ({100 * statistics.median(rival):.0f} %)" if rival else ""
            cells += [
                f"{100 * statistics.median(error):.1f} %{rule}",
                f"{len(error)}, {100 * statistics.mean(inside):.0f} %",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Replaces the table between the two comments of the page."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    written = f"{START}\n{table(Path(sys.argv[1]), Path(sys.argv[2]))}\n{END}"
    if not pattern.search(page):
        sys.exit(f"{PAGE} lacks the comments {START} and {END}")
    PAGE.write_text(pattern.sub(lambda _: written, page), encoding="utf-8")


if __name__ == "__main__":
    main()
