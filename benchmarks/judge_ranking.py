"""Rank correlation of each cheap quality estimate with sub-networks that were trained alone.

    python benchmarks/judge_ranking.py --out judge-ranking.csv

Draws sub-networks of examples/clinic.yaml's space (``judge_draw.py`` says how), trains each alone with two seeds for
equal tokens, trains one supernet over the space's feasible designs and tunes each sub-network a little from the weights
that it inherits, and asks the quality model, which sees all but the full training of the candidate itself. Prints
Kendall's τ between the mean of the trainings alone and everything that judged before them, overall and among
sub-networks of equal predicted latency. What is done is kept in ``--folder``; a call that was stopped goes on.

Columns: subnet, seed, alone_bits_per_byte, supernet_bits_per_byte (inherited weights, tuned),
quality_model_bits_per_byte, params, flops (of one token in decode), predicted_latency_s (likewise), band (1: within 5 %
of the median latency).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from safetensors.numpy import load_file

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.design.run.spec import load_run
from chipwise.design.targets.cost_model import CostModel
from chipwise.hardware.device import MachineProfile
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.data.tokens import TokenData, load_tokens
from chipwise.training.loop.accelerated import Execution, train_accelerated
from chipwise.training.supernet.score import score
from chipwise.training.supernet.sliced import extract
from chipwise.training.supernet.trainer import SupernetResult, train_supernet
from judge_draw import Subnet, draw, feasible, law, layer_parameters
from judge_quality_model import AllFidelities, table
from provenance import stamp

COLUMNS = (
    "subnet",
    "seed",
    "alone_bits_per_byte",
    "supernet_bits_per_byte",
    "quality_model_bits_per_byte",
    "params",
    "flops",
    "predicted_latency_s",
    "band",
)
SEEDS = (1, 2)


@dataclass(frozen=True)
class Plan:
    """Numbers of designs, steps and seeds."""

    half: int = 8  # sub-networks spread over latency, and as many in the band
    steps: int = 160  # of a training alone, 2,048 tokens each
    short_steps: int = 16  # of a short training alone
    pool: int = 800  # feasible designs that the supernet trains
    supernet_s: float = 300.0
    tune_steps: int = 16
    validation_bytes: int | None = None  # of full trainings
    score_bytes: int = 200_000  # of everything that judges before them


QUICK = Plan(
    half=4, steps=12, short_steps=3, pool=40, supernet_s=8.0, tune_steps=3, validation_bytes=20_000, score_bytes=20_000
)


TUNING = Recipe(warmup_steps=4, decay_share=1.0, rate_width=None)  # at the rates of the shared weights


class OutOfTimeError(Exception):
    """Raised when the minutes of this call are over; the next call continues."""


class Bench:
    """The pieces of the benchmark; each is stored when it is done."""

    def __init__(self, args: argparse.Namespace, plan: Plan) -> None:
        self.args, self.plan, self.folder = args, plan, args.folder
        self.began = time.monotonic()
        self.spec = load_run(args.spec)
        self.space = SearchSpace(self.spec.space)
        self.costing = CostModel(self.space, self.spec.workload, self._profile())
        self.stores = self._texts()
        self.subnets = draw(self.spec, self.space, self.costing, half=plan.half, seed=args.seed)
        self.cpu_s: dict[str, float] = {}  # of each kind of training, charged

    def _profile(self) -> MachineProfile:
        path = self.args.profile or self.folder / "profile.json"
        if not path.exists():
            target = self.spec.target
            path.parent.mkdir(parents=True, exist_ok=True)
            calibrate(runtime=target.runtime, threads=target.threads, seconds=60).save(path)
        return MachineProfile.load(path)

    def _texts(self) -> dict[int, TokenData]:
        sizes, corpus = self.spec.space.vocab_size, self.folder / "corpus"
        if not all((corpus / f"tokens-{size}.npz").exists() for size in sizes):
            TokenStore(load_corpus(self.spec.data, base=self.spec.folder), corpus, sizes).prepare()
        return {size: load_tokens(corpus / f"tokens-{size}.npz") for size in sizes}

    def _check_time(self, *_: object) -> None:
        if self.args.minutes is not None and time.monotonic() - self.began > 60 * self.args.minutes:
            raise OutOfTimeError

    def _train(self, kind: str, subnet: Subnet, *, steps: int, seed: int, max_bytes: int | None, **more) -> float:
        self._check_time()
        result = train_accelerated(
            subnet.arch,
            self.stores[subnet.arch.vocab_size],
            execution=Execution(),
            steps=steps,
            seed=seed,
            folder=self.folder / kind / f"{subnet.arch.digest[:16]}-{seed}",
            max_validation_bytes=max_bytes,
            **more,
        )
        self.cpu_s[kind] = self.cpu_s.get(kind, 0.0) + result.cpu_s
        print(f"{kind:6} {seed} {result.loss:.4f} {result.cpu_s:5.1f} CPU-s  {subnet.name}", flush=True)
        return result.loss

    def alone(self, seed: int) -> list[float]:
        """Bits per byte after full trainings."""
        plan = self.plan
        return [
            self._train("alone", one, steps=plan.steps, seed=seed, max_bytes=plan.validation_bytes)
            for one in self.subnets
        ]

    def short(self) -> list[float]:
        """Bits per byte after short trainings of another seed."""
        plan = self.plan
        return [
            self._train("short", one, steps=plan.short_steps, seed=3, max_bytes=plan.score_bytes)
            for one in self.subnets
        ]

    def supernet(self) -> SupernetResult:
        """Supernets of feasible random designs and of the evaluated designs, one each."""
        rows, _ = feasible(self.spec, self.space, self.costing, count=4 * self.plan.pool, seed=[self.args.seed, 21])
        chosen = np.random.default_rng([self.args.seed, 22]).permutation(len(rows))[: self.plan.pool]
        designs = [self.space.design(rows[i]).arch for i in chosen] + [one.arch for one in self.subnets]
        result = train_supernet(
            designs,
            self.stores,
            cpu_budget_s=self.plan.supernet_s,
            seed=self.args.seed,
            folder=self.folder / "supernet",
            on_progress=self._check_time,
        )
        print(f"supernet: {result.steps} steps, {result.tokens:,} tokens, {result.cpu_s:.0f} CPU-s", flush=True)
        self.cpu_s["supernet"] = result.cpu_s
        return result

    def inherited(self, result: SupernetResult) -> list[float]:
        """Bits per byte with inherited weights, untouched."""
        kept = self.folder / "supernet" / f"scores-{self.plan.supernet_s:g}.json"
        if not kept.exists():
            began = time.process_time()
            archs = [one.arch for one in self.subnets]
            scores = score(result.weights, result.whole, archs, self.stores, max_validation_bytes=self.plan.score_bytes)
            kept.write_text(json.dumps([scores, time.process_time() - began]))
        scores, self.cpu_s["scores"] = json.loads(kept.read_text())
        return scores

    def tuned(self, result: SupernetResult) -> list[float]:
        """Bits per byte after a few steps from inherited weights."""
        plan, weights = self.plan, load_file(result.weights)
        return [
            self._train(
                "tuned",
                one,
                steps=plan.tune_steps,
                seed=4,
                max_bytes=plan.score_bytes,
                recipe=TUNING,
                start=extract(one.arch, result.whole, weights),
            )
            for one in self.subnets
        ]


def main() -> None:
    """Trains, judges, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--folder", type=Path, default=Path("runs/ranking"), help="where trainings are kept")
    parser.add_argument("--profile", type=Path, help="a calibrated profile; this machine is calibrated unless given")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--minutes", type=float, help="stop after so long; the next call goes on")
    parser.add_argument("--quick", action="store_true", help="shows in a minute that it runs; its figures mean nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(args, QUICK if args.quick else Plan())
    try:
        report(bench, args.out)
    except OutOfTimeError:
        raise SystemExit("stopped after the minutes given; call again to go on") from None


def report(bench: Bench, out: Path) -> None:
    """Runs what is missing, writes the CSV and prints the table."""
    plan, subnets = bench.plan, bench.subnets
    alone = np.array([bench.alone(seed) for seed in SEEDS])
    short = np.array(bench.short())
    supernet = bench.supernet()
    inherited, tuned = np.array(bench.inherited(supernet)), np.array(bench.tuned(supernet))
    tokens = plan.steps * 2048
    stated = np.array([law(one, bench.stores[one.arch.vocab_size], tokens) for one in subnets])
    truth = alone.mean(axis=0)
    quality = AllFidelities(bench.spec, bench.space, bench.costing, bench.args.seed)
    believed = quality.leave_one_out(subnets, np.array([tuned, short, stated]), truth)
    band = np.array([one.band for one in subnets])
    with out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for i, one in enumerate(subnets):
            for number, seed in enumerate(SEEDS):
                figures = [f"{value:.5f}" for value in (alone[number, i], tuned[i], believed[i])]
                known = [one.arch.parameters(), one.flops, f"{one.latency_s:.6e}", int(one.band)]
                writer.writerow([one.number, seed, *figures, *known])
    stamp(out)
    judges = {
        "the other seed": alone[1],
        "supernet, inherited and tuned": tuned,
        "quality model, leave-one-out": believed,
        "supernet, inherited": inherited,
        f"short training alone, {plan.short_steps} steps": short,
        "scaling law as shipped": stated,
        "parameters": -np.array([float(one.arch.parameters()) for one in subnets]),
        "parameters of layers": -np.array([float(layer_parameters(one.arch)) for one in subnets]),
        "FLOPs": -np.array([float(one.flops) for one in subnets]),
        "latency": -np.array([one.latency_s for one in subnets]),
    }
    print(f"\nKendall's tau with {len(subnets)} sub-networks ({int(band.sum())} of equal latency), 95 % intervals")
    first = {"the other seed": judges.pop("the other seed")}
    print("\n".join([*table(first, alone[0], band), *table(judges, truth, band)[1:]]))
    spent = ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in bench.cpu_s.items())
    shared = sum(bench.cpu_s[kind] for kind in ("supernet", "scores", "tuned"))
    print(f"CPU: {spent}; of shared weights {shared / 60:.1f} min; in all {sum(bench.cpu_s.values()) / 60:.1f} min")


if __name__ == "__main__":
    main()
