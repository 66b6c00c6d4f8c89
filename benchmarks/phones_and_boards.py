"""Speeds of one user's runs as ``chipwise.estimate`` answers them, the chip left out of the fit: errors, coverage.

python benchmarks/phones_and_boards.py --truth FOLDER --out benchmarks/phones-and-boards-2026-11-26.csv [--rows ROWS]

FOLDER holds ``edge.csv.gz`` and ``phones_llm.csv.gz``, as ``chipwise fit --from edge`` reads them. Every row is asked
in the table's own words (model, device and variant, runtime and back end, format); the constants are fitted without its
chip. A row of the CSV is a class of chips: rows, the share answered, medians of |predicted / measured - 1|, the share
inside the 90 % interval with its standard error (chips drawn with replacement), and two rivals: bytes over the sheet's
bandwidth times one efficiency of the class, fitted without the chip too, and the same with a constant a layer.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import chipwise
import provenance
from chipwise.core.csvfile import write_rows
from chipwise.errors import ChipwiseError
from chipwise_fitting import edge_runs, npu_runs
from chipwise_fitting.edge import answering_with, constants_without
from chipwise_fitting.edge_rivals import by_efficiency
from chipwise_fitting.edge_runs import Run
from chipwise_fitting.table_runs import number, packed_rows

COLUMNS = (
    "phase", "class", "rows", "chips", "answered", "median_error", "inside_90", "inside_90_standard_error",
    "bandwidth_rule_median_error", "bandwidth_and_layers_rule_median_error",
)  # fmt: skip
DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Question:
    """One timed phase of a row, in the words of the table."""

    row_id: str
    phase: str
    kind: str
    words: Mapping[str, str | None]
    tokens: tuple[int, int]  # of the prompt, new
    measured_s: float  # of a pass


@dataclass(frozen=True, slots=True)
class Answer:
    """A question's answer: seconds of a pass and its interval; the first is None where there is none."""

    question: Question
    chip: str
    predicted_s: float | None
    low_s: float = math.nan
    high_s: float = math.nan
    problem: str = ""


def questions(folder: Path) -> Iterator[Question]:
    """Every timed phase of both tables."""
    for row in packed_rows(edge_runs.table_in(folder), edge_runs.NEEDED):
        if row.get("quality") == "doubtful":
            continue
        variant, end = row.get("variant") or "full", row.get("backend") or ""
        end = "cpu" if variant == "cpu" else "" if end in ("default", "qnn", "coreml") or variant == "npu" else end
        words = {
            "model": row["model"],
            "device": row["device"] if variant in ("full", "cpu") else f"{row['device']}:{variant}",
            "runtime": f"{row['runtime']}-{end}" if end and row["runtime"] != "openvino" else row["runtime"],
            "weights": row["quant"] or None,
        }
        short = "the prompt is short" in (row.get("notes") or "")
        prompt = number(row.get("prompt_tokens")) or (edge_runs.SHORT_PROMPT if short else edge_runs.PROMPT)
        made, past = number(row.get("gen_tokens")) or float(edge_runs.NEW_TOKENS), number(row.get("decode_context"))
        asked = {"decode": (max(1, round(past or 1)), round(made)), "prefill": (round(prompt), 1)}
        for phase, tokens in asked.items():
            if rate := number(row.get(f"{phase}_tokens_per_s")):
                passed = 1.0 if phase == "decode" else prompt
                yield Question(row["row_id"], phase, row["device_class"], words, tokens, passed / rate)
    table = folder / npu_runs.TABLE
    rows = packed_rows(table, npu_runs.NEEDED) if table.exists() else []
    parts = npu_runs.parts_of(rows)
    for row in rows:
        part = parts.get(row["row_id"])
        end = f"-{part}" if part else ""
        words = {"model": row["component"], "device": row["device"], "runtime": row["runtime"] + end}
        asked_of = {**words, "weights": row["precision"]}
        kind = f"Qualcomm {(part or 'npu').upper()}, {row['runtime']}"
        context = number(row["context"]) or npu_runs.SHORTEST
        context = npu_runs.SHORTEST if row["runtime"] == "genie" else context
        if rate := number(row["tokens_per_s"]):
            yield Question(row["row_id"], "decode", kind, asked_of, (round(context) - 1, 1), 1 / rate)
        if milliseconds := number(row.get("ttft_min_ms")):
            yield Question(row["row_id"], "prefill", kind, asked_of, (round(npu_runs.PIECE), 1), milliseconds / 1e3)


def answer(question: Question, chip: str) -> Answer:
    """What ``chipwise.estimate`` says with the constants in use."""
    prompt, new = question.tokens
    words = dict(question.words)
    model = str(words.pop("model"))
    try:
        found = chipwise.estimate(model, **words, prompt=prompt, new=new, hypothetical=True)
    except ChipwiseError as error:
        return Answer(question, chip, None, problem=str(error))
    metric = found.metrics["tpot_p50" if question.phase == "decode" else "ttft_p50"]
    if metric.low is None or metric.high is None:
        return Answer(question, chip, metric.value, problem="no interval")
    return Answer(question, chip, metric.value, metric.low, metric.high)


def answers(folder: Path) -> list[Answer]:
    """Every question's answer, the chip of each left out of the fit."""
    asked = list(questions(folder))
    chips = [chip_of(each) for each in asked]
    found: list[Answer] = []
    for chip, constants in constants_without(folder, sorted(set(chips))):
        with answering_with(constants):
            found += [answer(each, chip) for each, own in zip(asked, chips, strict=True) if own == chip]
        print(f"{chip}: {sum(1 for each in found if each.chip == chip)} answers", flush=True)
    return found


def chip_of(question: Question) -> str:
    """The name of the sheet that a question's device has; empty where it has none."""
    try:
        words = question.words
        found = chipwise.estimate("gpt2", device=str(words["device"]), runtime=words["runtime"], hypothetical=True)
    except ChipwiseError:
        return ""
    return found.device.partition(":")[0].partition(" ")[0]


def rivals(folder: Path) -> list[dict[tuple[str, str], float]]:
    """Seconds by the two simple rules, by row and phase."""
    every = [*edge_runs.read_runs(edge_runs.table_in(folder), told=False), *npu_runs.read_npu_runs(folder)]
    runs: Sequence[Run] = [run for run in every if run.kernels]
    groups = [run.chip for run in runs]
    names = [(run.row_id.partition(":")[0], run.phase) for run in runs]
    found = []
    for layers in (False, True):
        seconds = np.exp(by_efficiency(runs, groups, layers=layers))
        found.append(dict(reversed(list(zip(names, map(float, seconds), strict=True)))))
    return found


def summary(phase: str, kind: str, found: Sequence[Answer], by_rule: Sequence[Mapping[tuple[str, str], float]]) -> dict:
    """The row of one class."""
    told = [each for each in found if each.predicted_s is not None]
    misses = [abs(each.question.measured_s / (each.predicted_s or math.nan) - 1) for each in told]
    inside = np.array([each.low_s <= each.question.measured_s <= each.high_s for each in told], float)
    chips = sorted({each.chip for each in told})
    member = np.array([chips.index(each.chip) for each in told])
    random = np.random.default_rng(0)
    right, all_ = (np.bincount(member, weights, len(chips)) for weights in (inside, np.ones(len(told))))
    drawn = random.integers(0, len(chips), (DRAWS, len(chips)))
    error = float(np.std(right[drawn].sum(1) / all_[drawn].sum(1)))
    ruled = []
    for rule in by_rule:
        off = [abs(each.question.measured_s / rule[key] - 1) for each in found if (key := key_of(each)) in rule]
        ruled.append(round(float(np.median(off)), 4) if off else None)
    shown = (
        phase, kind, len(found), len(chips), round(len(told) / len(found), 4), round(float(np.median(misses)), 4),
        round(float(inside.mean()), 4), round(error, 4), *ruled,
    )  # fmt: skip
    return dict(zip(COLUMNS, shown, strict=True))


def key_of(found: Answer) -> tuple[str, str]:
    """What rules' answers are found by."""
    return found.question.row_id, found.question.phase


def main() -> None:
    """Scores both phases: all rows of each table, and each class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, required=True, help="the folder of the tables")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("--rows", type=Path, help="where to write every answer (row_id, phase, rates)")
    given = parser.parse_args()
    found, by_rule = answers(given.truth), rivals(given.truth)
    for problem, count in Counter(each.problem for each in found if each.predicted_s is None).most_common(20):
        print(f"not answered, {count} times: {problem[:140]}")
    rows = []
    for phase in ("decode", "prefill"):
        own = [each for each in found if each.question.phase == phase]
        for title, qualcomm in (("all of edge", False), ("all of phones_llm", True)):
            chosen = [each for each in own if each.question.kind.startswith("Qualcomm") == qualcomm]
            rows.append(summary(phase, title, chosen, by_rule))
        kinds = sorted({each.question.kind for each in own})
        rows += [summary(phase, kind, [each for each in own if each.question.kind == kind], by_rule) for kind in kinds]
    write_rows(given.out, rows, COLUMNS)
    provenance.stamp(given.out)
    if given.rows is not None:
        lines = [
            {"row_id": each.question.row_id, "phase": each.question.phase, "measured_s": each.question.measured_s,
             "predicted_s": each.predicted_s, "low_s": each.low_s, "high_s": each.high_s, "chip": each.chip,
             "class": each.question.kind, "problem": each.problem}
            for each in found
        ]  # fmt: skip
        write_rows(given.rows, lines, tuple(lines[0]))
    print(given.out.read_text())


if __name__ == "__main__":
    main()
