"""Promised and measured divergence and time of GGUF mixes: stock, chosen by ``chipwise quantize``, and drawn at random.

    python benchmarks/gguf_mixes.py runs/train-nano/model --data notes.txt --data manual.txt --out mixes.csv

For each stock mix, the mix of least divergence at its size and its time is chosen; both are written and measured: mean
KL to the original on held-out text, and the processor time of a decode step in llama.cpp, files in turns. With
``--random N``, N mixes of random formats, none of which the tool has seen, are predicted and measured too. The median
and the ninetieth percentile of the errors are printed. ``--work`` keeps what is known, so a stopped run goes on.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import numpy as np

from chipwise.cli.stages import Progress
from chipwise.deploy.export.gguf_mix import mix_bytes, stock_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import ggml
from chipwise.deploy.runtimes.llama_timing import FileTimes
from chipwise.design.quantize import windows
from chipwise.design.quantize.answers import Kept
from chipwise.design.quantize.gguf_file import as_gguf
from chipwise.design.quantize.gguf_run import PREFILL_SLACK, USUAL, GgufMix, GgufRun
from provenance import write_table

STOCK = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ3_M", "Q2_K")
POOLS = (  # of formats from which a random mix is drawn
    ("Q8_0", "Q6_K"),
    ("Q6_K", "Q5_K", "Q5_0"),
    ("Q5_K", "Q5_1", "Q4_K", "IQ4_NL"),
    ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS"),
    ("Q8_0", "Q4_K", "Q4_0", "Q3_K"),
)


def random_mix(run: GgufRun, number: int) -> dict[str, str]:
    """Formats of one pool, drawn for each matrix."""
    random = np.random.default_rng(100 + number)
    pool = POOLS[number % len(POOLS)]
    return {name: str(random.choice([kind for kind in pool if kind in own])) for name, own in run.losses.items()}


def row(run: GgufRun, mix: dict[str, str], promise: GgufMix, times: FileTimes, again: float) -> dict[str, object]:
    """A line of the table."""
    found, _ = run.measure(promise, mix)
    return {
        "mix": promise.name,
        "bytes": mix_bytes(run.file, mix),
        "promised_ms": f"{1e3 * (promise.predicted_s or 0):.4f}",
        "measured_ms": f"{1e3 * times.step_s:.4f}",
        "promised_prefill_ms": f"{1e3 * (promise.predicted_prefill_s or 0):.3f}",
        "measured_prefill_ms": f"{1e3 * times.prefill_s:.3f}",
        "repeatability": f"{again:.4f}",
        "promised_kl_nats": f"{promise.predicted_loss:.6f}",
        "measured_kl_nats": f"{found.loss:.6f}",
        "standard_error": f"{found.loss_error:.6f}",
        "usual_ms": "",
        **{f"kl_{name}": f"{loss:.6f}" for name, loss in found.domains.items()},
    }


def main() -> None:
    """Chooses, writes, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--stock", nargs="*", default=STOCK)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--held", type=int, default=windows.HELD_OUT, help="held-out windows of 256 tokens, in all")
    parser.add_argument("--work", type=Path, default=Path("runs/gguf-mixes"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    windows.HELD_OUT = args.held
    kept = Kept(args.work, "gguf-mixes", resume=True)
    file = GgufFile.open(as_gguf(args.model, args.work) if args.model.is_dir() else args.model)
    run = GgufRun(file, args.data, kept, device=None, seed=0, on_progress=Progress())
    rows, usual = [], stock_mix(USUAL, file)
    usual_ms = 1e3 * (run.promise(USUAL, usual, {}).predicted_s or 0.0)  # as timed before the choice
    for name in args.stock:
        mix = stock_mix(name, file)
        promise = run.promise(name, mix, {})
        chosen, _ = run.choose(
            {
                "size": promise.size_bytes,
                "time": (promise.predicted_s or 0.0) * 1.000001,
                "prefill": PREFILL_SLACK * (promise.predicted_prefill_s or 0.0),
            }
        )
        (own_s, stock_s), again = run.race([(chosen, "f16"), (mix, "f16")])
        rows.append(row(run, mix, promise, stock_s, again))
        rows.append(row(run, chosen, run.promise(f"chosen at {name}", chosen, {}), own_s, again))
        run.forget(chosen)
        for each in rows[-2:]:
            print(each, flush=True)
    for number in range(args.random):
        mix = random_mix(run, number)
        (step_s, usual_s), again = run.race([(mix, "f16"), (usual, "f16")])
        rows.append(row(run, mix, run.promise(f"random {number}", mix, {}), step_s, again))
        rows[-1]["usual_ms"] = f"{1e3 * usual_s.step_s:.4f}"
        run.forget(mix)
        print(rows[-1], flush=True)
    unseen = [each for each in rows if str(each["mix"]).startswith("random")]
    cases = (("ms", np.inf, False), ("ms", np.inf, True), ("prefill_ms", np.inf, False), ("kl_nats", 0.1, False))
    for what, most, drift in cases:
        errors = []
        for each in unseen:
            promised, measured = float(str(each[f"promised_{what}"])), float(str(each[f"measured_{what}"]))
            promised *= float(str(each["usual_ms"])) / usual_ms if drift else 1.0
            errors += [abs(promised / measured - 1)] if measured < most else []
        if errors:
            told = f"{what}{', times the drift of the usual mix' if drift else ''}"
            print(f"{told}: median {np.median(errors):.3f}, P90 {np.quantile(errors, 0.9):.3f}, {len(errors)} mixes")
    import_module(ggml().package.replace("-python", "").replace("-", "_"))  # so that its version is written
    write_table(args.out, rows)


if __name__ == "__main__":
    main()
