"""The winner of a search against reference designs and random search: equal training, several seeds.

    python benchmarks/winner_vs_baseline.py --seeds 3 --random RUN --out winner-vs-baseline.csv
    python benchmarks/winner_vs_baseline.py --contenders winner,baseline --out winner-vs-baseline.csv

Contenders: the ``winner`` and the reference design (``baseline``) of a finished run (it runs examples/clinic.yaml where
there is none); the winner of random search in the same space with the same total budget (``random``, a run of the same
file with ``search: {strategy: random}``: it is made where ``--random`` names no folder); ``grid-1`` to ``grid-6``,
Llama-like designs of the baseline's vocabulary and format in six proportions, one to six layers deep, each the largest
that is predicted no slower a token than the baseline (the fastest where all are slower); and ``baseline+conv``, the
baseline with the convolutions that the search may choose and reference designs rarely have, which separates the gain of
the search from the gain of that block.

All are trained anew with seeds that no search has used, for equal CPU time, exported, evaluated as exported on the
whole test text, which selected nothing, and measured alternately on this machine. Perplexity is per token of the
winner's vocabulary for all: two to the power of bits per byte times that vocabulary's bytes per token. What was trained
is kept in ``--work`` and found there again.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from dataclasses import replace
from pathlib import Path

import yaml
from safetensors.numpy import load_file

from chipwise.api.runs import run_folder
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.design.phases.measuring import metrics_of
from chipwise.design.report.record import load
from chipwise.design.run.spec import load_run
from chipwise.design.targets.cost_model import CostModel
from chipwise.hardware.device import MachineProfile
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop.worker import TrainJob, training_pool
from chipwise.training.tasks.references import llama_proportions
from exported_quality import exported_bits_per_byte
from finished import finished
from provenance import stamp

COLUMNS = (
    "contender",
    "design",
    "seed",
    "bits_per_byte",
    "perplexity",
    "latency_p50_s",
    "latency_p99_s",
    "peak_memory_bytes",
    "train_cpu_s",
    "clean",
)
DEPTHS = (1, 2, 3, 4, 5, 6)  # of the grid


def main() -> None:
    """Trains, measures, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--run", type=Path, help="the run's folder; runs/<name> unless given")
    parser.add_argument("--random", type=Path, default=Path("runs/random"), help="the folder of random search")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid-seeds", type=int, help="of the grid; all unless given")
    parser.add_argument("--contenders", type=lambda text: text.split(","), help="names to compare; all unless given")
    parser.add_argument("--work", type=Path, default=Path("runs/winner-vs-baseline"), help="where trainings are kept")
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    file = with_equal_trainings(args.spec, args.work)
    spec = load_run(file)
    folder = run_folder(spec, args.run)
    finished(file, folder)
    random = args.random if args.contenders is None or "random" in args.contenders else None
    if random is not None:
        at_random = args.work / "random.yaml"
        at_random.write_text(f"{file.read_text()}\nsearch: {{strategy: random}}\n")
        finished(at_random, random)
    designs = contenders(spec, folder, random)
    designs = {name: designs[name] for name in args.contenders or designs}
    for name, design in designs.items():
        print(f"{name}: {summary(design)}, {design.arch.parameters():,} parameters", flush=True)
    store = TokenStore(load_corpus(spec.data, base=spec.folder), folder / "corpus", spec.space.vocab_size)
    store.prepare()
    few = args.seeds if args.grid_seeds is None else args.grid_seeds
    seeds = {
        spec.seed + number: {k: v for k, v in designs.items() if number <= few or not k.startswith("grid")}
        for number in range(1, args.seeds + 1)
    }
    rows = contest(seeds, spec, store, args.work)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    stamp(args.out)
    report(rows)


def with_equal_trainings(spec: Path, work: Path) -> Path:
    """``spec`` with a budget of 16 CPU minutes that trains finalists and reference design for 100 s each."""
    file = work / spec.name
    data = yaml.safe_load(spec.read_text())
    budget = {**data["budget"], "cpu": "16 min", "final": "100 s"}
    file.write_text(yaml.safe_dump({**data, "budget": budget, "prior": "shipped"}))
    return file


def contenders(spec, folder: Path, random: Path | None) -> dict:
    """All designs by name."""
    record = load(folder / "record.json")
    chosen = {"winner": record.trial(record.winner).choices, "baseline": record.trial(record.baseline).choices}
    if random is not None:
        other = load(random / "record.json")
        chosen["random"] = other.trial(other.winner).choices
    if spec.space.conv != ("none",):
        chosen["baseline+conv"] = {**chosen["baseline"], "conv": "both"}
    chosen |= grid(spec, folder, chosen["baseline"])
    return {name: design_of(choices, spec=spec.space, name=name) for name, choices in chosen.items()}


def grid(spec, folder: Path, baseline: dict) -> dict:
    """For each depth the largest Llama-like design that is predicted no slower than the baseline, or the fastest."""
    costing = CostModel(SearchSpace(spec.space), spec.workload, MachineProfile.load(folder / "profile.json"))

    def predicted(choices: dict) -> dict:
        promise = costing.predict(design_of(choices, spec=spec.space))
        return {metric: bounds[0] for metric, bounds in promise.items()}

    limit = predicted(baseline)["tpot_p50"]
    found: dict[int, list[tuple[bool, float, dict]]] = {}
    for choices in llama_proportions(replace(spec.space, depth=DEPTHS), aspect=(1, 1000)):
        depth = choices["depth"]
        if depth in DEPTHS and all(choices[name] == baseline[name] for name in ("vocab_size", "weights", "head_size")):
            cost = predicted(choices)
            fits = cost["tpot_p50"] <= limit
            found.setdefault(depth, []).append((fits, cost["parameters"] if fits else -cost["tpot_p50"], choices))
    best = {depth: max(found[depth], key=lambda item: item[:2])[2] for depth in DEPTHS}
    return {f"grid-{depth}": choices for depth, choices in best.items()}


def contest(seeds, spec, store: TokenStore, room: Path) -> list[dict]:
    """One row for each seed and its contenders."""
    jobs = {}
    with training_pool(spec.budget.workers) as pool:
        for seed, designs in seeds.items():
            for design in {design.arch.digest: design for design in designs.values()}.values():
                job = TrainJob(
                    arch=design.arch,
                    tokens=str(store.tokens_path(design.arch.vocab_size)),
                    folder=str(room / f"{design.arch.digest[:12]}-{seed}"),
                    cpu_budget_s=spec.budget.final_s,
                    seed=seed,
                )
                jobs[pool.submit(job.to_data())] = (design.arch.digest, seed)
        trained = {}
        for event in pool.events():
            if event.kind == "failed":
                raise SystemExit(f"{jobs[event.job]}: {event.data['message']}")
            if event.kind == "result":
                trained[jobs[event.job]] = event.data
                digest, seed = jobs[event.job]
                print(f"trained {digest[:12]}, seed {seed}: {event.data['loss']:.4f} bits/byte", flush=True)
    yardstick = store.tokens(seeds[min(seeds)]["winner"].arch.vocab_size)
    bytes_per_token = yardstick.validation_bytes.sum() / (len(yardstick.validation) - 1)
    rows = []
    for seed, designs in seeds.items():
        paths, found = [], []
        for name, design in designs.items():
            result = trained[design.arch.digest, seed]
            weights = load_file(result["weights"])
            paths.append(export(design, weights, room / f"{name}-{seed}.onnx"))
            tokens = store.tokens(design.arch.vocab_size)
            quality = exported_bits_per_byte(design, weights, tokens, room / "evaluated.onnx", split="test")
            found.append((name, quality, 2 ** (quality * bytes_per_token), result["cpu_s"]))
        target = spec.target
        measured = measure_alternately(paths, spec.workload, runtime=target.runtime, threads=target.threads)
        for (name, quality, perplexity, cpu_s), one in zip(found, measured, strict=True):
            metrics = metrics_of(one)
            rows.append(
                {
                    "contender": name,
                    "design": summary(designs[name]),
                    "seed": seed,
                    "bits_per_byte": quality,
                    "perplexity": perplexity,
                    "latency_p50_s": metrics["tpot_p50"],
                    "latency_p99_s": metrics["tpot_p99"],
                    "peak_memory_bytes": metrics["peak_memory"],
                    "train_cpu_s": cpu_s,
                    "clean": int(one.clean),
                }
            )
    return rows


def report(rows: list[dict]) -> None:
    """Prints each contender's mean and spread, and the winner's perplexity against it."""
    names = list(dict.fromkeys(row["contender"] for row in rows))

    def mean(name: str, column: str) -> float:
        return statistics.mean(row[column] for row in rows if row["contender"] == name)

    for name in names:
        values = [row["bits_per_byte"] for row in rows if row["contender"] == name]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        change = mean("winner", "perplexity") / mean(name, "perplexity") - 1
        print(
            f"{name:14} {mean(name, 'bits_per_byte'):.4f} ± {spread:.4f} bits per byte over {len(values)} seeds, "
            f"perplexity {mean(name, 'perplexity'):6.2f} (the winner's is {change:+.1%}), "
            f"TPOT P50 {mean(name, 'latency_p50_s') * 1e6:.1f} µs, P99 {mean(name, 'latency_p99_s') * 1e6:.1f} µs, "
            f"peak memory {mean(name, 'peak_memory_bytes') / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
