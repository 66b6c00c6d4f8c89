"""Excess loss of the design that a law picks within a latency limit, among trainings with known losses.

    python benchmarks/design_regret.py --quality FOLDER --out design-regret.csv

FOLDER holds tables of real trainings (width, depth, parameters, tokens, loss_nats). For each shape the law of
``chipwise.training.laws.laws`` is fitted without that shape's trainings and predicts its last checkpoint. Each of
five devices
asks ten times for the best design within a limit on its time per token, as ``chipwise.estimate`` predicts it; limits
lie evenly over the shapes' times, from where two are allowed. ``regret`` is the loss of the design picked over that of
the best one allowed, less one; the other columns are those of three rivals: the largest model allowed, by all
parameters and by those in the layers, and the law of Besiroglu et al. 2024 (its order is that of all parameters,
because all shapes read the same text).

Printed besides: Kendall's tau of predicted and true losses, over all shapes and over pairs within 20 % of one size, and
how often a 90 % interval holds the truth once one training fixes the offset (every ordered pair of shapes, the law
fitted without both).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

import chipwise
from chipwise.core.csvfile import write_rows
from chipwise.core.statistics import kendall_tau
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.training.laws.law_fit import LawTrainings, updated
from chipwise.training.laws.laws import BESIROGLU, Law
from chipwise_fitting.law import fit_law, read, shape_numbers, thinned
from provenance import stamp

DEVICES = ("h100-sxm", "jetson-agx-orin", "rtx-4090", "apple-m2-pro", "mi300x")
LIMITS = 10
NEAR = 1.2
VOCABULARY, HEAD = 50_304, 128
ANY_LEVEL = 0.2**2  # variance of the logarithm of a level of which nothing is known: factors of 0.7 to 1.4


def arch_of(columns: np.ndarray) -> ArchSpec:
    """A model of this width, depth and share of feed-forwards."""
    _, _, width, depth, ffn_share, queries, *_ = columns
    heads = max(1, round(width / HEAD))
    shared = [kv for kv in range(1, heads + 1) if heads % kv == 0 and (kv == 1 or kv * queries <= heads)]
    return uniform(
        vocab_size=VOCABULARY,
        d_model=int(width),
        depth=int(depth),
        heads=heads,
        kv_heads=max(shared),
        head_size=HEAD,
        ffn_width=round(ffn_share * width / 3),
        max_tokens=2048,
        tie_embeddings=False,
    )


def trainings_in(folder: Path) -> tuple[LawTrainings, np.ndarray, LawTrainings]:
    """Thinned trainings of a folder, including the last of each shape, which are also returned as published."""
    whole = read(folder)
    trainings = thinned(whole)
    return trainings, last_of(trainings), whole.where(np.isin(np.arange(len(whole)), last_of(whole)))


def last_of(trainings: LawTrainings) -> np.ndarray:
    """Index of each shape's last checkpoint, in the order of the table."""
    numbers = shape_numbers(trainings)
    rows = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
    return np.sort([mine[trainings.tokens[mine].argmax()] for mine in rows])


def one(trainings: LawTrainings, index: int) -> LawTrainings:
    """The training at ``index`` alone."""
    return trainings.where(np.arange(len(trainings)) == index)


def groups(trainings: LawTrainings, by: str) -> np.ndarray:
    """Group number of each training; groups are left out together."""
    _, layers, width, depth, *_ = trainings.shapes.columns()
    return {
        "shape": shape_numbers(trainings), "width": width, "depth": depth, "size": np.round(np.log2(layers)),
    }[by]  # fmt: skip


def predicted(trainings: LawTrainings, last: np.ndarray, by: str = "shape") -> np.ndarray:
    """The loss of each shape's last checkpoint by the law fitted without the shape, or without all of its group."""
    numbers, found = groups(trainings, by), []
    laws = {number: fit_law(trainings.where(numbers != number)) for number in np.unique(numbers[last])}
    for index in last:
        law = laws[numbers[index]]
        found.append(law.nats_per_token(one(trainings, index).shapes, trainings.tokens[index])[0])
    return np.array(found)


def times_s(trainings: LawTrainings, last: np.ndarray, device: str) -> np.ndarray:
    """Seconds per token of each shape on a device."""
    archs = [arch_of(trainings.shapes.columns()[:, index]) for index in last]
    return np.array([chipwise.estimate(arch, device=device, prompt=512, new=128).tpot_s for arch in archs])


def questions(device: str, times: np.ndarray, truth: np.ndarray, scores: Mapping[str, np.ndarray]) -> list[dict]:
    """The regrets of one device's questions; a score's design is the allowed one with the lowest score."""
    rows = []
    for limit_s in np.geomspace(np.sort(times)[1], times.max(), LIMITS):
        allowed = np.flatnonzero(times <= limit_s * (1 + 1e-9))
        best = truth[allowed].min()
        picked = {name: truth[allowed[score[allowed].argmin()]] / best - 1 for name, score in scores.items()}
        rows.append({
            "device": device, "limit_ms": f"{1e3 * limit_s:.4g}", "allowed": len(allowed), "best_loss": f"{best:.4f}",
            **{name: f"{value:.6f}" for name, value in picked.items()},
        })  # fmt: skip
    return rows


def near_tau(first: np.ndarray, second: np.ndarray, sizes: np.ndarray) -> tuple[float, int]:
    """Kendall's tau over pairs within 20 % of one size, and how many pairs there are."""
    pairs = [(i, j) for i, j in itertools.combinations(range(len(sizes)), 2)
             if abs(math.log(sizes[i] / sizes[j])) <= math.log(NEAR)]  # fmt: skip
    signs = [np.sign((first[i] - first[j]) * (second[i] - second[j])) for i, j in pairs]
    return float(np.mean(signs)) if signs else math.nan, len(pairs)


def coverage(trainings: LawTrainings, last: np.ndarray, final: LawTrainings) -> tuple[float, int, float]:
    """Coverage of the interval after another shape's training fixed the offset, number of pairs, half-width."""
    numbers, hits, halves = shape_numbers(trainings), [], []
    for a, b in itertools.combinations(range(len(last)), 2):
        i, j = last[a], last[b]
        law = unlevelled(fit_law(trainings.where((numbers != numbers[i]) & (numbers != numbers[j]))))
        for anchor, target in ((a, b), (b, a)):
            held = updated(law, one(final, anchor), source="one training")
            wanted = one(final, target)
            value, low, high = held.expect(wanted.shapes, wanted.tokens)
            hits.append(bool(low[0] <= wanted.nats_per_token[0] <= high[0]))
            halves.append(high[0] / value[0] - 1)
    return float(np.mean(hits)), len(hits), float(np.median(halves))


def unlevelled(law: Law) -> Law:
    """The law with an unknown level, as for a user's own text."""
    covariance = law.covariance.copy()
    covariance[0, :] = covariance[:, 0] = 0.0
    covariance[0, 0] = ANY_LEVEL
    return replace(law, covariance=covariance)


def main() -> None:
    """Asks, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--leave-out",
        choices=("shape", "width", "depth", "size"),
        default="shape",
        help="what the law is fitted without: the shape itself, or all of its width, depth or octave of parameters",
    )
    options = parser.parse_args()
    trainings, last, final = trainings_in(options.quality)
    truth, columns = final.nats_per_token, trainings.shapes.columns()[:, last]
    layers, everything = columns[1], columns[1] + 2 * VOCABULARY * columns[2]
    by_law = predicted(trainings, last, options.leave_out)
    published = BESIROGLU.nats_per_token(everything, trainings.tokens[last])
    scores = {"regret": by_law, "regret_all_parameters": -everything, "regret_layer_parameters": -layers}
    scores["regret_published_law"] = published
    rows = [row for device in DEVICES for row in questions(device, times_s(trainings, last, device), truth, scores)]
    write_rows(options.out, rows, list(rows[0]))
    stamp(options.out)
    print(f"{len(last)} shapes, {trainings.tokens[last].min():.3g} tokens or more, {len(rows)} questions")
    print(f"{'':24} mean regret   worst   tau all   tau near   level")
    for name, score in scores.items():
        regrets = 100 * np.array([float(row[name]) for row in rows])
        near, pairs = near_tau(score, truth, everything)
        level = f"{100 * (score / truth - 1).mean():+.2f} %" if (score > 0).all() else "none"
        print(f"{name:24} {regrets.mean():8.3f} % {regrets.max():8.3f} % {kendall_tau(score, truth):7.3f}"
              f" {near:7.3f} ({pairs} pairs) {level}")  # fmt: skip
    print(f"level left out: root mean square {100 * np.sqrt(np.mean((by_law / truth - 1) ** 2)):.2f} %")
    share, count, half = coverage(trainings, last, final)
    print(f"interval after one training: holds {100 * share:.1f} % of {count}, half-width {100 * half:.2f} %")


if __name__ == "__main__":
    main()
