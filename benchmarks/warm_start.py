"""Training time saved at equal final quality by starting from supernet weights.

    python benchmarks/warm_start.py --tokens runs/clinic/corpus --folder warm --out benchmarks/warm-start.csv
    python benchmarks/warm_start.py --out benchmarks/warm-start.csv --report     # trains nothing

Shared weights of 27 designs (width 64, 96 or 128, one to three layers, three feed-forward widths; 2,048 tokens) are
trained once. Then two of the designs are trained alone, by the usual recipe, from random and from inherited weights,
for 100 to 800 steps, two seeds each; steps are counted by a clock, so a busy machine changes nothing. ``--report``
prints the curves, and how many steps the inherited start needs for what the random one has after each number of steps.
Kept trainings in the folder and rows in the file are not made again.

Columns: design, seed, start, steps, bits_per_byte, step_s, supernet_cpu_s.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

import resumable_rows
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop import trainer
from chipwise.training.supernet.score import score
from chipwise.training.supernet.sliced import extract
from chipwise.training.supernet.trainer import train_supernet
from claims_quality import JUDGED_BYTES, Steps
from training_recipe import SIZES, shape

COLUMNS = ("design", "seed", "start", "steps", "bits_per_byte", "step_s", "supernet_cpu_s")
VOCABULARY = 2048
FAMILY = tuple(
    shape(d=d, depth=depth, ffn=d * times, kv=d // 32, vocab=VOCABULARY)
    for d, depth, times in itertools.product((64, 96, 128), (1, 2, 3), (2, 3, 4))
)
DESIGNS = {
    f"{depth} x {d}": shape(d=d, depth=depth, ffn=3 * d, kv=d // 32, vocab=VOCABULARY)
    for depth, d in ((2, 64), (2, 128))
}
BUDGETS = (100, 200, 400, 800)
STARTS = ("random", "inherited")


def trained(
    arch: ArchSpec, seed: int, steps: int, start: dict[str, np.ndarray] | None, folder: Path, store: TokenStore
) -> tuple[float, float]:
    """Bits per byte after ``steps``, and CPU seconds per step; continues from shorter trainings in ``folder``."""
    clock = Steps()
    result = trainer.train(
        arch,
        store.tokens(VOCABULARY),
        cpu_budget_s=steps,
        seed=seed,
        folder=folder,
        start=start,
        max_validation_bytes=JUDGED_BYTES,
        checkpoint_every_s=math.inf,
        clock=clock,
    )
    return result.loss, clock.step_s()


def steps_for(quality: float, steps: np.ndarray, curve: np.ndarray) -> float:
    """Steps after which ``curve`` reaches ``quality``, interpolated linearly in ln steps and clipped to the curve."""
    return float(np.exp(np.interp(-quality, -curve, np.log(steps))))


def report(rows: list[dict[str, str]]) -> None:
    """Prints curves and savings."""
    held = {(row["design"], row["start"], int(row["seed"]), int(row["steps"])): row for row in rows}
    savings: dict[int, list[float]] = {}
    seconds: list[float] = []
    for design, seed in sorted({(row["design"], row["seed"]) for row in rows}):
        mine = {
            start: [held[key] for steps in BUDGETS if (key := (design, start, int(seed), steps)) in held]
            for start in STARTS
        }
        curves = {start: np.array([float(row["bits_per_byte"]) for row in mine[start]]) for start in STARTS}
        if len({len(curve) for curve in curves.values()} | {len(BUDGETS)}) > 1:
            continue
        untrained = held.get((design, "inherited", int(seed), 0))
        print(f"{design}, seed {seed}: inherited weights as they are {untrained and untrained['bits_per_byte']}")
        seconds.append(float(mine["random"][0]["step_s"]))
        for steps, alone in zip(BUDGETS, curves["random"], strict=True):
            untouched = untrained is not None and float(untrained["bits_per_byte"]) <= alone
            needed = 0.0 if untouched else steps_for(alone, np.array(BUDGETS), curves["inherited"])
            savings.setdefault(steps, []).append(1 - needed / steps)
            inherited = curves["inherited"][BUDGETS.index(steps)]
            print(f"  {steps} steps: random {alone:.4f}, inherited {inherited:.4f}, which needs {needed:.0f}")
    for steps, shares in savings.items():
        spread = f"{min(shares):.0%} to {max(shares):.0%}"
        print(f"for what {steps} steps from random weights give, inherited ones save {np.mean(shares):.0%} ({spread})")
    if rows:
        print(f"the shared weights took {float(rows[0]['supernet_cpu_s']):.0f} CPU seconds, once for all designs")


def main() -> None:
    """Trains what the file lacks, writes after each training, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supernet-budget", type=float, default=60.0, help="CPU seconds")
    parser.add_argument("--designs", nargs="*", choices=list(DESIGNS), default=list(DESIGNS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1])
    parser.add_argument("--tokens", type=Path, help="folder that keeps the tokenised text")
    parser.add_argument("--folder", type=Path, help="folder that keeps the trainings")
    parser.add_argument("--report", action="store_true", help="only print what the file holds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = resumable_rows.read(options.out)
    if options.report:
        report(rows)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "trainings"
        store = TokenStore(load_corpus({}), options.tokens or Path(scratch) / "corpus", SIZES)
        data = store.tokens(VOCABULARY)
        shared = train_supernet(
            FAMILY, {VOCABULARY: data}, cpu_budget_s=options.supernet_budget, seed=0, folder=folder / "shared"
        )
        weights = load_file(shared.weights)
        held = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
        for name, seed, start, steps in itertools.product(options.designs, options.seeds, STARTS, (0, *BUDGETS)):
            key = (name, str(seed), start, str(steps))
            if key in held or (start == "random" and not steps):
                continue
            arch = DESIGNS[name]
            if steps:
                given = extract(arch, shared.whole, weights) if start == "inherited" else None
                place = folder / f"{name}-{seed}-{start}".replace(" ", "")
                quality, step_s = trained(arch, seed, steps, given, place, store)
            else:
                quality, step_s = score(weights, shared.whole, [arch], data, max_validation_bytes=JUDGED_BYTES)[0], 0.0
            found = (f"{quality:.5f}", f"{step_s:.5f}", f"{shared.cpu_s:.1f}")
            resumable_rows.add(rows, dict(zip(COLUMNS, (*key, *found), strict=True)), options.out, COLUMNS)
    report(rows)


if __name__ == "__main__":
    main()
