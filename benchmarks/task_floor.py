"""Scores of a finished run's contenders on its tasks, with their measured costs: does the winner keep the floor?

    chipwise search examples/clinic-task.yaml
    python benchmarks/task_floor.py --run runs/clinic-task --out task-floor.csv

A run that asked no tasks can be asked afterwards: its finalists and its baseline are tuned, rounded and exported as a
search does at its end, and judged on held-out items; nothing of the run is changed.

    python benchmarks/task_floor.py --run runs/clinic --task organ-system --out task-floor.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from pathlib import Path

from chipwise.design.phases.task_evaluation import run_side_by_side
from chipwise.design.report.record import RunRecord, Trial, load
from chipwise.design.run.spec import RunSpec, run_spec
from chipwise.model.space.designs import design_of
from chipwise.training.evaluations.worker import RESULT, TaskJob
from provenance import stamp

COLUMNS = ("run", "task", "trial", "role", "design", "accuracy", "low", "high", "held_out", "learnt_from", "judged",
           "bits_per_byte", "ttft_p99_s", "tpot_p99_s", "peak_memory_bytes", "parameters", "model_bytes", "clean",
           "judging_cpu_s")  # fmt: skip


def contenders(record: RunRecord) -> list[Trial]:
    """Those that were trained and measured in full: finalists, winner and baseline."""
    longest = max(trial.rung or 0 for trial in record.trials)
    return [trial for trial in record.trials if trial.rung == longest and trial.measured]


def ask(run: Path, spec: RunSpec, trial: Trial, role: str, task: str, out: Path) -> tuple[dict, float | None]:
    """Scores of one contender and the CPU seconds spent; None if they were known."""
    design = design_of(trial.choices, spec=spec.space, name="baseline" if role == "baseline" else spec.name)
    weights = sorted(
        (run / "trainings" / design.arch.digest).glob("weights-*.safetensors"),
        key=lambda path: float(path.stem.removeprefix("weights-")),
    )[-1]
    job = TaskJob(
        task=task,
        arch=design.arch,
        form=design.weights,
        weights=str(weights),
        tokenizer=str(run / "corpus" / f"tokenizer-{design.arch.vocab_size}.json"),
        folder=str(out / str(trial.number) / Path(task).stem),
    )
    known = (Path(job.folder) / RESULT).exists()
    before = os.times()
    ((_, result),) = run_side_by_side({(trial.number, task): job}, workers=1)
    after = os.times()
    return result, None if known else sum(after[2:4]) - sum(before[2:4])


def row(run: Path, record: RunRecord, trial: Trial, task: str, result: dict, cpu_s: float | None) -> dict:
    """A line of the table."""
    measured, model = trial.measured or {}, run / "trials" / str(trial.number) / "model.onnx"
    return {
        "run": record.name,
        "task": task,
        "trial": trial.number,
        "role": record.role(trial),
        "design": trial.summary,
        "accuracy": result.get("value"),
        "low": result.get("low"),
        "high": result.get("high"),
        "held_out": result.get("test_items"),
        "learnt_from": result.get("train_items"),
        "judged": result.get("judged") or result.get("failed"),
        "bits_per_byte": trial.quantised_loss,
        "ttft_p99_s": measured.get("ttft_p99"),
        "tpot_p99_s": measured.get("tpot_p99"),
        "peak_memory_bytes": measured.get("peak_memory"),
        "parameters": trial.parameters,
        "model_bytes": model.stat().st_size if model.exists() else None,
        "clean": trial.clean,
        "judging_cpu_s": None if cpu_s is None else round(cpu_s, 1),
    }


def main() -> None:
    """Prints and writes a row for every contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/clinic-task"))
    parser.add_argument("--task", default="organ-system", help="asked where the run did not ask it")
    parser.add_argument("--trial", type=int, action="append", help="only this contender; may be given again")
    parser.add_argument("--work", type=Path, default=Path("runs/task-floor"), help="where classifiers are left")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record = load(args.run / "record.json")
    spec = run_spec(json.loads((args.run / "spec.json").read_text())["spec"], file="spec.json")
    rows = []
    for trial in contenders(record):
        if args.trial and trial.number not in args.trial:
            continue
        asked = trial.tasks.get(args.task)
        if asked is not None:
            result, cpu_s = {name: getattr(asked, name) for name in asked.__slots__}, None
        else:
            result, cpu_s = ask(args.run, spec, trial, record.role(trial), args.task, args.work)
        rows.append(row(args.run, record, trial, args.task, result, cpu_s))
        print(rows[-1], flush=True)
    if args.out is not None:
        with args.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        stamp(args.out)


if __name__ == "__main__":
    main()
