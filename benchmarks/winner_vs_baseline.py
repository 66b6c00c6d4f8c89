"""Winner against hand-designed baseline of a search: equal training budget, several seeds, measured in turns.

    python benchmarks/winner_vs_baseline.py --seeds 3 --out winner-vs-baseline.csv

Takes the winner and the baseline of a finished run (it runs examples/clinic.yaml where there is none), trains both anew
with seeds that the search has not used, exports them, judges the exported files on the whole validation text and
measures them alternately on this machine. Bits per byte compare across vocabularies; perplexity is per token of each
contender's own vocabulary and does not.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from chipwise import api
from chipwise.deploy.onnx import export
from chipwise.profile.harness import measure_alternately
from chipwise.report.record import load
from chipwise.run import load_run
from chipwise.run.measuring import exported_bits_per_byte, metrics_of
from chipwise.space.designs import design_of, summary
from chipwise.train.data import load_corpus
from chipwise.train.pool import WorkerPool
from chipwise.train.tokenizer import TokenStore
from chipwise.train.worker import TrainJob

COLUMNS = (
    "contender",
    "seed",
    "bits_per_byte",
    "perplexity",
    "latency_p50_s",
    "latency_p99_s",
    "peak_memory_bytes",
    "train_cpu_s",
    "clean",
)


def main() -> None:
    """Trains, measures, writes and sums up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--run", type=Path, help="the run's folder; runs/<name> unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    spec = load_run(args.spec)
    folder = api.run_folder(spec, args.run)
    if not (folder / "record.json").exists() or load(folder / "record.json").status != "finished":
        api.search(args.spec, out=folder, resume=True)
    record = load(folder / "record.json")
    designs = {
        name: design_of(record.trial(number).choices, spec=spec.space, name=name)
        for name, number in (("winner", record.winner), ("baseline", record.baseline))
    }
    for name, design in designs.items():
        print(f"{name}: {summary(design)}, {design.arch.parameters():,} parameters", flush=True)
    store = TokenStore(load_corpus(spec.data, base=spec.folder), folder / "corpus", spec.space.vocab_size)
    store.prepare()
    with tempfile.TemporaryDirectory(prefix="chipwise-") as room:
        rows = contest(designs, range(spec.seed + 1, spec.seed + 1 + args.seeds), spec, store, Path(room))
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    report(rows)


def contest(designs, seeds, spec, store: TokenStore, room: Path) -> list[dict]:
    """One row for each contender and seed."""
    jobs = {}
    with WorkerPool(spec.budget.workers) as pool:
        for seed in seeds:
            for name, design in designs.items():
                job = TrainJob(
                    arch=design.arch,
                    tokens=str(store.tokens_path(design.arch.vocab_size)),
                    folder=str(room / f"{name}-{seed}"),
                    cpu_budget_s=spec.budget.final_s,
                    seed=seed,
                )
                jobs[pool.submit(job)] = (name, seed)
        trained = {}
        for event in pool.events():
            if event.kind == "failed":
                raise SystemExit(f"{jobs[event.job]}: {event.data['message']}")
            if event.kind == "result":
                trained[jobs[event.job]] = event.data
                print(f"trained {jobs[event.job]}: {event.data['bits_per_byte']:.4f} bits per byte", flush=True)
    rows = []
    for seed in seeds:
        paths, found = [], []
        for name, design in designs.items():
            result = trained[name, seed]
            weights = load_file(result["weights"])
            paths.append(export(design, weights, room / f"{name}-{seed}.onnx"))
            tokens = store.tokens(design.arch.vocab_size)
            quality = exported_bits_per_byte(design, weights, tokens, room / "judged.onnx")
            bytes_per_token = tokens.validation_bytes.sum() / (len(tokens.validation) - 1)
            found.append((name, quality, 2 ** (quality * bytes_per_token), result["cpu_s"]))
        target = spec.target
        measured = measure_alternately(paths, spec.workload, runtime=target.runtime, threads=target.threads)
        for (name, quality, perplexity, cpu_s), one in zip(found, measured, strict=True):
            metrics = metrics_of(one)
            rows.append(
                {
                    "contender": name,
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
    """Prints each contender's mean and spread, and the difference."""
    means = {}
    for name in dict.fromkeys(row["contender"] for row in rows):
        mine = [row for row in rows if row["contender"] == name]
        values = [row["bits_per_byte"] for row in mine]
        means[name] = statistics.mean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        p50 = statistics.mean(row["latency_p50_s"] for row in mine)
        p99 = statistics.mean(row["latency_p99_s"] for row in mine)
        memory = statistics.mean(row["peak_memory_bytes"] for row in mine)
        print(
            f"{name}: {means[name]:.4f} ± {spread:.4f} bits per byte over {len(mine)} seeds, "
            f"TPOT P50 {p50 * 1e6:.1f} µs, P99 {p99 * 1e6:.1f} µs, peak memory {memory / 1e6:.1f} MB"
        )
    change = means["winner"] / means["baseline"] - 1
    print(f"the winner's bits per byte are {abs(change):.1%} {'lower' if change < 0 else 'higher'} than the baseline's")


if __name__ == "__main__":
    main()
