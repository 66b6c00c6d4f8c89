"""Formats of weights, activations and KV cache chosen together, against weights alone, in equal memory and time.

    python benchmarks/gguf_cache.py MODEL.gguf --data notes.txt --data manual.txt --work W --out cache.csv

Memory is that of all tensors and of the keys and values of ``--context`` tokens. Limits are shares of what stock Q4_K_M
takes with llama.cpp's usual cache (f16), and the time of its decode step after as many tokens. For each limit of memory
the mix of least divergence is chosen exactly twice: with the usual cache, and with the cache's format chosen, too. Both
are written, raced in turns in llama.cpp (processor time of a decode step) and measured on held-out text, with keys and
values rounded as llama.cpp rounds them. How activations are rounded follows in llama.cpp from a matrix's format: the
loss of a format includes it, so that it is part of both choices.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import resumable_rows
from chipwise.cli.stages import Progress
from chipwise.deploy.export.gguf_mix import Mix, stock_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import ggml
from chipwise.design.quantize.answers import Kept
from chipwise.design.quantize.gguf_run import USUAL, GgufMix, GgufRun
from chipwise.design.quantize.kv_cache import CacheFormat
from chipwise.errors import Infeasible
from gguf_chips import shares

COLUMNS = (
    "model", "context", "memory_share", "memory_bytes", "limit_ms", "choice", "formats", "cache", "weight_bytes",
    "cache_bytes", "promised_nats", "promised_ms", "nats", "standard_error", "step_ms", "repeatability",
)  # fmt: skip
ALONE, TOGETHER = "weights alone", "weights and cache"


def choices(run: GgufRun, limits: dict[str, float]) -> dict[str, tuple[Mix, CacheFormat]]:
    """The mix and the cache of each way of choosing that has one within the limits."""
    every, made = run.caches, {}
    for name, caches in ((ALONE, every[:1]), (TOGETHER, every)):
        run.caches = caches
        try:
            made[name] = run.choose(limits)
        except Infeasible as error:
            print(f"{name}: {error}", flush=True)
        finally:
            run.caches = every
    return made


def measured(run: GgufRun, found: dict[str, tuple[Mix, CacheFormat]], limits: dict[str, float]) -> list[dict[str, str]]:
    """A row for each choice."""
    times, again = run.race([(mix, cache.name) for mix, cache in found.values()])
    rows = []
    for (name, (mix, cache)), each in zip(found.items(), times, strict=True):
        own: GgufMix = run.measure(run.promise(name, mix, limits, cache), mix)[0]
        rows.append(
            {
                "choice": name, "formats": shares(run, mix), "cache": cache.name, "weight_bytes": own.size_bytes,
                "cache_bytes": own.cache_bytes, "promised_nats": f"{own.predicted_loss:.5f}",
                "promised_ms": f"{1e3 * (own.predicted_s or 0):.4f}", "nats": f"{own.loss:.5f}",
                "standard_error": f"{own.loss_error:.5f}", "step_ms": f"{1e3 * each.step_s:.4f}",
                "repeatability": f"{again:.4f}",
            }
        )  # fmt: skip
    for mix, _ in found.values():
        run.forget(mix)
    return rows


def main() -> None:
    """Chooses, writes, races and measures for each limit of memory that the table lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--context", type=int, default=2048, help="tokens whose keys and values are kept")
    parser.add_argument("--memory", type=float, nargs="*", default=(1.0, 0.9, 0.8, 0.7), help="shares of Q4_K_M's")
    parser.add_argument("--work", type=Path, default=Path("runs/gguf-cache"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    file, rows = GgufFile.open(args.model), resumable_rows.read(args.out)
    kept = Kept(args.work, f"gguf-cache {args.context}", resume=True)
    run = GgufRun(file, args.data, kept, device=None, seed=0, on_progress=Progress(), context=args.context)
    import_module(ggml().package.replace("-python", "").replace("-", "_"))  # so that its version is written
    usual = run.promise(USUAL, stock_mix(USUAL, file), {})
    whole, limit_s = usual.size_bytes + usual.cache_bytes, usual.predicted_s or 0.0
    for share in args.memory:
        about = {"model": args.model.stem, "context": str(args.context), "memory_share": str(share)}
        if any(about.items() <= row.items() for row in rows):
            continue
        limits = {"size": share * whole, "time": limit_s}
        for row in measured(run, choices(run, limits), limits):
            limit = {"memory_bytes": f"{share * whole:.0f}", "limit_ms": f"{1e3 * limit_s:.4f}"}
            resumable_rows.add(rows, about | limit | row, args.out, COLUMNS)


if __name__ == "__main__":
    main()
