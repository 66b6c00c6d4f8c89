"""Designs drawn by hand, each trained alone for the whole budget of a search, beside searches: test bits per byte.

    python benchmarks/real/expert.py train reference 0 --work W --out expert-clinic.csv    # one design, one seed
    python benchmarks/real/expert.py search 0 --work W --out expert-clinic.csv             # one search of that seed
    python benchmarks/real/expert.py measure --work W --out expert-clinic.csv              # times of all, in turns
    python benchmarks/real/expert.py report --out expert-clinic.csv

Contender and search spend equal CPU time: all that the run file gives pays for reading data, the training with its
overhead, export and the score on test text of both; both train in one thread. A drawn design is not measured within
the budget, which is in its favour, and its matrices are packed by the best quantiser for single ones. Every model is
judged as exported, on the whole test text. Rows that the table holds are not made again.
Columns: contender, design, seed, bits per byte of the exported model on test text, its weight format, steps, tokens,
validation bits per byte and charged CPU seconds of the training, CPU seconds of everything, and, after ``measure``,
time and peak memory. ``old-search`` are searches whose law counted every pass over the text as new text; rows with
``-before`` are older than learned rounding in searches, and drawn designs among them were rounded to the nearest; in
``expert-zen5.csv`` ``search-before`` are searches with an earlier prior, and ``search-depths`` and ``search-one-key``
those with parts of the present one. In ``expert-xeon-2026-11-30.csv`` ``search-before`` are searches that measured all
reference designs and calibrated for twice as long. ``expert-xeon-40-minutes.csv`` and ``expert-zen3-40-minutes.csv``
were made with ``cpu: 40 min`` in the run file. The searches of ``expert-xeon-narrower.csv`` also try narrower designs;
``search-between`` and ``search-between-busy`` are of versions between those and the searches before, the latter beside
a third process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from safetensors.numpy import load_file
from single import opened, searched

import resumable_rows
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.design.phases.halving import LONG_OVERHEAD
from chipwise.design.phases.measuring import metrics_of
from chipwise.design.phases.run_budget import ending_s
from chipwise.design.run.spec import RunSpec, load_run
from chipwise.model.space.designs import design_of, summary
from chipwise.model.walk.calibration import choose, quantiser
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop.evaluate import calibrated
from chipwise.training.loop.trainer import train
from exported_quality import exported_bits_per_byte
from provenance import here

COLUMNS = (
    "contender", "design", "seed", "bits_per_byte", "weights", "steps", "tokens", "validation_bits_per_byte",
    "train_cpu_s", "cpu_s", "tpot_p50_s", "tpot_p99_s", "ttft_p99_s", "peak_memory_bytes",
)  # fmt: skip
FORMATS = ("int8", "int4")


def drawn(
    width: int,
    depth: int,
    heads: tuple[int, int],
    ffn: int,
    vocab: int,
    conv: str,
    *,
    tied: bool,
    head: int = 32,
    kind: str = "swiglu",
) -> dict[str, Any]:
    """Choices of a decoder with equal layers and SwiGLU; ``heads`` are those of queries and of keys."""
    layer = {"heads": heads[0], "kv_heads": heads[1], "ffn": kind, "ffn_width": ffn}
    return {
        "d_model": width, "depth": depth, "vocab_size": vocab, "head_size": head, "tie_embeddings": tied,
        "weights": "int8", "sharing": "none", "conv": conv, "layers": [layer] * depth,
    }  # fmt: skip


DRAWN: Mapping[str, dict[str, Any]] = {
    "reference": drawn(160, 6, (5, 1), 416, 8192, "none", tied=True),  # of clinic on the machine of the README
    "reference-conv": drawn(160, 6, (5, 1), 416, 8192, "both", tied=True),
    "small-conv": drawn(128, 2, (4, 4), 384, 4096, "both", tied=False),
    "small-conv-8k": drawn(128, 2, (4, 4), 384, 8192, "both", tied=True),
    "own-reference": drawn(128, 5, (2, 2), 352, 8192, "none", tied=True, head=64),  # of the searches on a Zen 5 core
    # of later searches there, whose limit on memory excluded the one before:
    "one-key-reference": drawn(128, 5, (4, 1), 352, 8192, "none", tied=True),
    "two-heads-reference": drawn(128, 5, (2, 1), 352, 8192, "none", tied=True, head=64),
    "four-layers-reference": drawn(128, 4, (4, 1), 352, 8192, "none", tied=True),
    "slow-reference": drawn(160, 2, (5, 1), 416, 4096, "none", tied=True),  # of two searches on a slower core
    "one-layer-reference": drawn(128, 1, (2, 2), 352, 4096, "none", tied=True, head=64),
    "two-layers-reference": drawn(128, 2, (2, 2), 352, 4096, "none", tied=True, head=64),  # on a Xeon with AMX
    "three-layers-reference": drawn(128, 3, (2, 2), 352, 4096, "none", tied=True, head=64),  # there, for 40 CPU-minutes
    "two-layers-conv": drawn(96, 2, (4, 1), 256, 4096, "both", tied=True, kind="gelu"),  # of a search, but for conv
    "shallow-conv": drawn(160, 3, (5, 1), 416, 8192, "both", tied=True),
}


def train_alone(name: str, seed: int, file: Path, work: Path) -> list[dict[str, Any]]:
    """Trains a drawn design for the whole budget; a row for each weight format."""
    import torch

    torch.set_num_threads(1)
    spec = load_run(file)
    design = design_of(DRAWN[name], spec=replace(spec.space, head_size=(DRAWN[name]["head_size"],)), name=name)
    task = opened(spec, work / "corpus")
    result = train(
        design.arch,
        task.data(design.arch).load(),
        cpu_budget_s=(spec.allowance.total - time.process_time() - ending_s(spec.allowance.total)) / LONG_OVERHEAD,
        seed=seed,
        folder=work / f"{name}-{seed}",
        recipe=Recipe(**task.recipe),
    )
    weights = load_file(result.weights)
    store = TokenStore(load_corpus(spec.data, base=spec.folder), work / "corpus", spec.space.vocab_size)
    store.prepare()
    rows = []
    for form in FORMATS:
        one = design_of({**DRAWN[name], "weights": form}, spec=spec.space, name=name)
        packing, judge = calibrated(one.arch, weights, task.data(one.arch), Recipe(**task.recipe))
        packing = replace(packing, quantiser=quantiser(choose(one, weights, packing, judge).method))
        path = export(one, weights, work / f"{name}-{seed}-{form}.onnx", packing=packing)
        evaluated, tokens = path.with_suffix(".evaluated.onnx"), store.tokens(one.arch.vocab_size)
        bits = exported_bits_per_byte(one, weights, tokens, evaluated, split="test", packing=packing)
        rows.append(
            {
                "contender": name, "design": summary(one), "seed": seed, "bits_per_byte": f"{bits:.5f}",
                "weights": form, "steps": result.steps, "tokens": result.tokens,
                "validation_bits_per_byte": f"{result.loss:.5f}", "train_cpu_s": f"{result.cpu_s:.1f}",
                "cpu_s": f"{time.process_time():.1f}",
            }
        )  # fmt: skip
    return rows


def search(seed: int, file: Path, work: Path) -> list[dict[str, Any]]:
    """Runs or resumes one search; returns a row for its winner."""
    budget = {**yaml.safe_load(file.read_text())["budget"], "workers": 1}
    changes = {"budget": budget, "seed": seed, "prior": "shipped"}
    record = searched(file, changes, work / f"search-{seed}.yaml")
    winner = record.trial(record.winner)
    return [
        {
            "contender": "search", "design": winner.summary, "seed": seed, "bits_per_byte": f"{winner.test_loss:.5f}",
            "weights": winner.weights, "tokens": winner.curve[-1].tokens,
            "validation_bits_per_byte": f"{winner.loss:.5f}", "train_cpu_s": f"{winner.train_cpu_s:.1f}",
            "cpu_s": f"{sum(record.budget.spent.values()):.1f}",
        }
    ]  # fmt: skip


def measure(rows: list[dict[str, Any]], file: Path, work: Path) -> None:
    """Measures every model of the table; see :func:`measure_rows`."""
    paths = [
        work / f"search-{row['seed']}" / "winner" / "model.onnx"
        if row["contender"] == "search"
        else work / f"{row['contender']}-{row['seed']}-{row['weights']}.onnx"
        for row in rows
    ]
    measure_rows(rows, paths, load_run(file))


def measure_rows(rows: Sequence[dict[str, Any]], paths: Sequence[Path], spec: RunSpec) -> None:
    """Measures the models of ``rows`` in turns, and writes the times into these."""
    found = measure_alternately(paths, spec.workload, runtime=spec.target.runtime, threads=spec.target.threads)
    for row, one in zip(rows, found, strict=True):
        metrics = metrics_of(one)
        row |= {name: f"{metrics[name.removesuffix('_s')]:.3g}" for name in ("tpot_p50_s", "tpot_p99_s", "ttft_p99_s")}
        row["peak_memory_bytes"] = f"{metrics['peak_memory']:.0f}"


def report(rows: list[dict[str, Any]]) -> None:
    """Prints each contender's best format: mean and deviation over seeds, and how it compares with the search."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["contender"], row["weights"] if row["contender"] != "search" else ""), []).append(row)

    def mean(group: list[dict[str, Any]], column: str) -> float:
        return statistics.mean(float(row[column]) for row in group)

    for (name, form), group in groups.items():
        bits = [float(row["bits_per_byte"]) for row in group]
        spread = f" ± {statistics.stdev(bits):.4f}" if len(bits) > 1 else ""
        text = f"{name} {form}: {statistics.mean(bits):.4f}{spread} bits per byte over {len(bits)} seeds"
        if all(row["tpot_p50_s"] for row in group):
            text += f", {mean(group, 'tpot_p50_s') * 1e6:.0f} µs a token"
        ours = groups.get(("search", ""), [])
        seeds = {row["seed"] for row in ours} & {row["seed"] for row in group}
        if seeds and name != "search":
            pair = [mean([row for row in part if row["seed"] in seeds], "bits_per_byte") for part in (ours, group)]
            text += f"; the search has {pair[0] / pair[1] - 1:+.1%} on seeds {', '.join(sorted(seeds))}"
        print(text)


def main() -> None:
    """Trains, searches, measures or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "search", "measure", "report"])
    parser.add_argument("rest", nargs="*", help="train: contender and seed; search: seed")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--work", type=Path, default=Path("runs/expert"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = resumable_rows.read(options.out)
    if options.what in ("train", "search"):
        name, seed = ("search", *options.rest) if options.what == "search" else options.rest
        if any(row["contender"] == name and row["seed"] == seed for row in rows):
            return
        if name == "search":
            new = search(int(seed), options.spec, options.work)
        else:
            new = train_alone(name, int(seed), options.spec, options.work)
        made = [*resumable_rows.read(options.out), *({**row, **here()} for row in new)]
        resumable_rows.write(options.out, made, COLUMNS)
        print(json.dumps(new), flush=True)
    if options.what == "measure":
        measure(rows, options.spec, options.work)
        resumable_rows.write(options.out, rows, COLUMNS)
    if options.what in ("measure", "report"):
        report(rows)


if __name__ == "__main__":
    main()
