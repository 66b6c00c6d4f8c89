"""Real searches with `auto` and with random search: same run file, seed and CPU time; test loss and measured time.

    python benchmarks/real/live.py search images auto 0 --work W --out live.csv    # one search
    python benchmarks/real/live.py measure images --work W --out live.csv          # classifiers in W, in turns
    python benchmarks/real/live.py report --out live.csv

All searches have one worker and the prior that chipwise ships, and train one design for the rest of the budget. Random
search draws that design at random from those within the limits. Rows that the table holds are not made again.
Columns: task, strategy, seed, the winner's design, its test and validation loss (bits per byte or error rate) as
exported, seconds per token or per input (median, as measured by the search; then, for classifiers, the median of many
short turns with the other winners, which a slow hour changes alike), tokens and charged CPU seconds of its training,
CPU seconds of the whole search, and the deviation of the loss between seeds that chipwise assumes for the task.

Rows of earlier versions of ``auto``: ``auto-before`` did not know what convolutions before the patches are worth;
``auto-between`` assumed that they lower the error rate by a tenth after any number of tokens; ``auto-earlier`` had a
law of classifiers that was fitted to short training runs and counted every pass as new data (spoken words: and chose
the size before the operators); ``auto-shallow`` assumed that one layer instead of two costs image classifiers 2 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from single import searched

import resumable_rows
from chipwise.design.run.spec import load_run
from provenance import here

COLUMNS = (
    "task", "strategy", "seed", "design", "test_loss", "validation_loss", "p50_s", "in_turns_p50_s", "tokens",
    "train_cpu_s", "cpu_s", "seed_sd",
)  # fmt: skip
TURNS, INPUTS = 80, 60  # of each model, when winners are timed
FILES = {"text": "clinic.yaml", "images": "vision.yaml", "words": "speech.yaml"}


def search(task: str, strategy: str, seed: int, cpu: str, work: Path) -> dict[str, Any]:
    """Runs or resumes one search; returns its row."""
    file, own = Path("examples") / FILES[task], work / f"{task}-{strategy}-{seed}.yaml"
    changes = {"budget": {"cpu": cpu, "workers": 1}, "seed": seed, "prior": "shipped", "search": {"strategy": strategy}}
    record, settings = searched(file, changes, own), load_run(file).task_settings
    winner = record.trial(record.winner)
    return {
        "task": task, "strategy": strategy, "seed": seed, "design": winner.summary,
        "test_loss": f"{winner.test_loss:.5f}", "validation_loss": f"{winner.loss:.5f}",
        "p50_s": f"{winner.measured[settings.latency_metric]:.3g}", "tokens": winner.curve[-1].tokens,
        "train_cpu_s": f"{winner.train_cpu_s:.1f}", "cpu_s": f"{sum(record.budget.spent.values()):.1f}",
        "seed_sd": settings.metric.seed_sd, **here(),
    }  # fmt: skip


def answers(model: Path) -> Callable[[], object]:
    """A function that runs the exported classifier once, on an input of zeros and one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    (asked,) = session.get_inputs()
    kind = np.float32 if asked.type == "tensor(float)" else np.uint8
    given = {asked.name: np.zeros([size if isinstance(size, int) else 1 for size in asked.shape], kind)}
    return lambda: session.run(None, given)


def measure(rows: Sequence[dict[str, Any]], task: str, work: Path) -> None:
    """Times the task's winners that ``work`` holds in many short turns, and writes the medians into their rows."""
    own = [row for row in rows if row["task"] == task]
    paths = [work / f"{task}-{row['strategy']}-{row['seed']}/winner/model.onnx" for row in own]
    held = [(row, answers(path)) for path, row in zip(paths, own, strict=True) if path.exists()]
    seconds: list[list[float]] = [[] for _ in held]
    for turn in range(TURNS):
        for (_, answer), found in list(zip(held, seconds, strict=True))[:: 1 if turn % 2 else -1]:
            timed = []
            for _ in range(INPUTS):
                begun = time.perf_counter()
                answer()
                timed.append(time.perf_counter() - begun)
            found.append(statistics.median(timed))
    for (row, _), found in zip(held, seconds, strict=True):
        row["in_turns_p50_s"] = f"{statistics.median(found):.3g}"


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Prints, for each task, losses and times of both strategies on the seeds that both have."""
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = {(row["strategy"], row["seed"]): row for row in rows if row["task"] == task}
        seeds = sorted(seed for strategy, seed in mine if strategy == "auto" and ("random", seed) in mine)
        if not seeds:
            continue
        means = {}
        turns = all(mine[strategy, seed]["in_turns_p50_s"] for strategy in ("auto", "random") for seed in seeds)
        for strategy in ("auto", "random"):
            losses, times = (
                [float(mine[strategy, seed][column]) for seed in seeds]
                for column in ("test_loss", "in_turns_p50_s" if turns else "p50_s")
            )
            means[strategy] = statistics.mean(losses), statistics.mean(times)
            text = " ".join(f"{loss:.4g}" for loss in losses)
            print(f"{task}, {strategy}: loss {means[strategy][0]:.4g} ({text}), {means[strategy][1] * 1e6:.0f} µs")
        off = math.log(means["auto"][0] / means["random"][0]) / float(mine["auto", seeds[0]]["seed_sd"])
        print(
            f"{task}: auto's loss is {off:+.1f} deviations of seeds from random's, its time "
            f"{means['auto'][1] / means['random'][1]:.2f} times"
        )


def main() -> None:
    """Searches or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "measure", "report"])
    parser.add_argument("rest", nargs="*", help="search: task, strategy and seed; measure: task")
    parser.add_argument("--cpu", default="16 min", help="CPU time of one search")
    parser.add_argument("--work", type=Path, default=Path("runs/live"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = resumable_rows.read(options.out)
    if options.what == "report":
        report(rows)
        return
    if options.what == "measure":
        measure(rows, *options.rest, options.work)
        resumable_rows.write(options.out, rows, COLUMNS)
        return
    task, strategy, seed = options.rest
    if any((row["task"], row["strategy"], row["seed"]) == (task, strategy, seed) for row in rows):
        return
    row = search(task, strategy, int(seed), options.cpu, options.work)
    resumable_rows.write(options.out, [*resumable_rows.read(options.out), row], COLUMNS)
    print(row, flush=True)


if __name__ == "__main__":
    main()
