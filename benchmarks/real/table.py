"""Real trainings of designs and recipes, counted in steps and seeded: the table on which searches are replayed.

    python benchmarks/real/table.py text pilot      # 64 designs, three fidelities, and the gate
    python benchmarks/real/table.py text            # everything that the table lacks, piece by piece
    python benchmarks/real/table.py text --report   # noise floor, separability, rank correlations

A design is sampled uniformly from the space of ``benchmarks/real/TASK.yaml``, its recipe from ``RECIPES``. Every
training has a budget of tokens: a ninth, a third and the whole of F (the decays branch from one trunk), and for some
designs 8 F and 32 F. Rows of the table are not trained again, so it can be stopped at any moment. Losses are of the
first part of the validation data. Budgets are steps and matrix products are in bfloat16, so a busy machine changes only
``cpu_s`` and at which steps ``curve`` has points: the same processor and torch give the same losses.

Columns: task, design (number of the draw), seed, share (of F), steps, tokens, loss, cpu_s, parameters, and as JSON the
choices, the recipe, and the curve of the training loss as pairs of tokens and loss.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.trainer import train
from provenance import COLUMNS as ORIGIN
from provenance import here

HERE = Path(__file__).parent
COLUMNS = (
    "task", "design", "seed", "share", "steps", "tokens", "loss", "cpu_s", "parameters", "choices", "recipe", "curve",
)  # fmt: skip
STEPS = {"text": 200, "images": 300, "words": 300, "drawing": 300, "ranking": 300, "transcripts": 300}
DESIGNS = {"text": 600, "images": 150, "words": 150, "drawing": 100, "ranking": 100, "transcripts": 100}
FILES = {
    "images": "vision.yaml",
    "words": "speech.yaml",
    "drawing": "diffusion.yaml",
    "ranking": "ranking.yaml",
    "transcripts": "transcripts.yaml",
}
"""Examples whose spaces serve; text has a space of its own beside this file."""

RECIPES: Mapping[str, tuple[Any, ...]] = {
    "rate": (0.25, 0.5, 1.0, 2.0),  # times both usual rates
    "batch": (0.25, 0.5, 1.0, 2.0),  # times the usual batch, at equal tokens
    "decay_share": (0.3, 0.5, 0.8),
    "weight_decay": (0.0, 0.1, 0.3),
}
"""What a recipe may be; the usual one of the task has the factors 1."""

PILOT = 64
THIRDS = (1 / 9, 1 / 3, 1.0)
LONG = {8.0: 10, 32.0: 50}  # shares of F to which every tenth and every fiftieth design of texts is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Trainings of one design with one seed to several lengths, the shortest first."""

    task: str
    design: int
    seed: int
    shares: tuple[float, ...]  # of F


def draw(task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Choices and recipes of all designs of a task, by number."""
    space = SearchSpace(load_run(run_file(task)).space)
    rows = space.sample(DESIGNS[task], np.random.default_rng(1))
    rng = np.random.default_rng(2)
    recipes = [{name: values[int(rng.integers(len(values)))] for name, values in RECIPES.items()} for _ in rows]
    return [space.choices(row) for row in rows], recipes


def run_file(task: str) -> Path:
    """The run file whose space and data a task's designs come from."""
    own = HERE / f"{task}.yaml"
    return own if task not in FILES else HERE.parents[1] / "src/chipwise/cli/examples" / FILES[task]


def recipe_of(drawn: Mapping[str, Any], usual: Recipe) -> Recipe:
    """``drawn`` as a recipe: factors of the usual rates and batch, the rest by name."""
    return replace(
        usual,
        matrix_rate=usual.matrix_rate * drawn["rate"],
        table_rate=usual.table_rate * drawn["rate"],
        batch_windows=max(1, round(usual.batch_windows * drawn["batch"])),
        decay_share=drawn["decay_share"],
        weight_decay=drawn["weight_decay"],
    )


def trained(piece: Piece, choices: Mapping[str, Any], drawn: Mapping[str, Any], corpus: Path) -> list[dict[str, Any]]:
    """Rows of a piece."""
    import torch

    torch.set_num_threads(1)
    spec = load_run(run_file(piece.task))
    data = spec.task_settings.open(spec.data, base=Path(spec.folder), folder=corpus, space=spec.space)
    arch = design_of(choices, spec=spec.space).arch
    recipe = recipe_of(drawn, Recipe(**data.recipe))
    loaded = data.data(arch).load()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for share in piece.shares:
            steps = max(4, round(STEPS[piece.task] * share / drawn["batch"]))
            began = time.process_time()
            result = train(
                arch,
                loaded,
                steps=steps,
                seed=piece.seed,
                folder=folder,
                recipe=recipe,
                precision="bf16",
                max_validation_bytes=data.quick,
                checkpoint_every_s=float("inf"),
            )
            curve = [(point[1], round(point[2], 4)) for point in result.curve][:: max(1, len(result.curve) // 12)]
            rows.append(
                {
                    "task": piece.task,
                    "design": piece.design,
                    "seed": piece.seed,
                    "share": f"{share:.4g}",
                    "steps": result.steps,
                    "tokens": result.tokens,
                    "loss": f"{result.loss:.5f}",
                    "cpu_s": f"{time.process_time() - began:.1f}",
                    "parameters": arch.parameters(),
                    "choices": json.dumps(choices, separators=(",", ":")),
                    "recipe": json.dumps(drawn, separators=(",", ":")),
                    "curve": json.dumps(curve, separators=(",", ":")),
                }
            )
    return rows


def pieces(task: str, *, pilot: bool) -> Iterator[Piece]:
    """Pieces of the table, the most informative first: many designs, then further seeds."""
    count = PILOT if pilot else DESIGNS[task]
    for design in range(count):
        yield Piece(task=task, design=design, seed=0, shares=THIRDS)
    for design in range(min(count // 4, 100)):
        for seed in (1, 2):
            yield Piece(task=task, design=design, seed=seed, shares=THIRDS)
    if task == "text" and not pilot:
        for share, every in LONG.items():
            for design in range(0, count, every):
                yield Piece(task=task, design=design, seed=0, shares=(share,))


def read(path: Path) -> list[dict[str, str]]:
    """The rows of the table; none if there is no such file."""
    csv.field_size_limit(1 << 24)
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def make(task: str, path: Path, corpus: Path, *, pilot: bool, workers: int, minutes: float) -> None:
    """Trains what the table lacks, for at most ``minutes`` of this machine's time."""
    choices, recipes = draw(task)
    held = {(row["design"], row["seed"], row["share"]) for row in read(path)}
    missing = (
        piece
        for piece in pieces(task, pilot=pilot)
        if any((str(piece.design), str(piece.seed), f"{share:.4g}") not in held for share in piece.shares)
    )
    spec = load_run(run_file(task))
    spec.task_settings.open(spec.data, base=Path(spec.folder), folder=corpus, space=spec.space).prepare()
    end, origin = time.monotonic() + minutes * 60, here()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[list[dict[str, Any]]]] = set()
        while True:
            while len(running) < workers and time.monotonic() < end and (piece := next(missing, None)) is not None:
                running.add(pool.submit(trained, piece, choices[piece.design], recipes[piece.design], corpus))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for job in done:
                add(path, job.result(), origin, held)


def add(path: Path, rows: list[dict[str, Any]], origin: Mapping[str, str], held: set[tuple[str, str, str]]) -> None:
    """Appends the rows that the table does not hold."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *ORIGIN))
        if new:
            writer.writeheader()
        for row in rows:
            key = (str(row["design"]), str(row["seed"]), str(row["share"]))
            if key not in held:
                held.add(key)
                writer.writerow({**row, **origin})
                print(*(row[name] for name in COLUMNS[:9]), sep="  ", flush=True)


def report(rows: list[dict[str, str]]) -> None:
    """Prints the noise of seeds, the rank correlation of fidelities, and whether the space separates."""
    from scipy.stats import kendalltau

    loss = {(int(row["design"]), int(row["seed"]), row["share"]): float(row["loss"]) for row in rows}
    shares = [f"{share:.4g}" for share in THIRDS]
    first = {share: {d: value for (d, s, f), value in loss.items() if s == 0 and f == share} for share in shares}
    for share in shares:
        groups: dict[int, list[float]] = {}
        for (design, _, f), value in loss.items():
            if f == share:
                groups.setdefault(design, []).append(value)
        several = [np.var(values, ddof=1) for values in groups.values() if len(values) > 1]
        noise = float(np.sqrt(np.mean(several))) if several else float("nan")
        both = [(loss[d, 0, share], loss[d, 1, share]) for d in first[share] if (d, 1, share) in loss]
        alike = kendalltau(*zip(*both, strict=True)).statistic if len(both) > 2 else float("nan")
        values = np.array(sorted(first[share].values()))
        if len(values) < 24:
            continue
        rng = np.random.default_rng(0)
        best = np.mean([rng.choice(values, 24, replace=False).min() for _ in range(2000)])
        whole = first[shares[-1]]
        common = [d for d in whole if d in first[share]]
        order = kendalltau([first[share][d] for d in common], [whole[d] for d in common]).statistic
        print(
            f"share {share}: {len(values)} designs, loss {values[0]:.4f} … median {np.median(values):.4f} … "
            f"{values[-1]:.4f}; deviation between seeds {noise:.4f}, tau between two seeds {alike:.3f}, "
            f"tau with the whole length {order:.3f}; best of 24 at random {best:.4f}, "
            f"{(best - values[0]) / noise:.1f} seed deviations above the best known"
        )


def main() -> None:
    """Trains or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(STEPS))
    parser.add_argument("what", nargs="?", choices=["pilot", "all"], default="all")
    parser.add_argument("--report", action="store_true", help="train nothing; print what the table says")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no training after so many")
    parser.add_argument("--corpus", type=Path, help="folder that keeps the prepared data")
    parser.add_argument("--out", type=Path, help="the table; benchmarks/real/TASK.csv unless given")
    options = parser.parse_args()
    path = options.out or HERE / f"{options.task}.csv"
    if not options.report:
        corpus = options.corpus or Path(tempfile.mkdtemp())
        try:
            make(
                options.task, path, corpus, pilot=options.what == "pilot", workers=options.workers,
                minutes=options.minutes,
            )  # fmt: skip
        finally:
            if options.corpus is None:
                shutil.rmtree(corpus, ignore_errors=True)
    report(read(path))


if __name__ == "__main__":
    main()
