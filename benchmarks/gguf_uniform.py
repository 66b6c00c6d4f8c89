"""Are formats by matrix faster than one format at equal loss, in llama.cpp?

    python benchmarks/gguf_uniform.py MODEL.gguf --data notes.txt --data manual.txt --out uniform.csv

One format for all matrices (where a width excludes it, llama.cpp's own fallback) has a divergence; the fastest mix with
no more of it, and with a prompt no slower than the rival's, is chosen exactly from the measured times of formats and
the measured loss of each format of each matrix. The rival is the fastest single format with no more divergence than
that; ``--levels`` may also state allowed nats a token. Both are written, raced in turns in llama.cpp (processor time
of a decode step) and measured on held-out text. ``faster`` is the rival's time over the mix's, ``repeatability`` one
file against itself. With ``--promises`` no file is written: columns of measurements stay empty. ``--work`` may be that
of ``gguf_chips.py``, with its answers.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import resumable_rows
from chipwise.cli.stages import Progress
from chipwise.deploy.export.gguf_mix import Mix, fallback
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import ggml
from chipwise.design.quantize.answers import Kept
from chipwise.design.quantize.gguf_run import GgufMix, GgufRun
from chipwise.design.strategies.exact import Option, choose
from gguf_chips import shares

KINDS = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q5_0", "Q4_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q3_K", "Q2_K")
MEASURED = (
    "rival_nats",
    "mix_nats",
    "difference_error",
    "rival_ms",
    "mix_ms",
    "faster",
    "rival_prefill_ms",
    "mix_prefill_ms",
    "repeatability",
)
COLUMNS = (
    "model",
    "level",
    "rival",
    "formats",
    "rival_bytes",
    "mix_bytes",
    "rival_promised_nats",
    "mix_promised_nats",
    "rival_promised_ms",
    "mix_promised_ms",
    "promised_faster",
    *MEASURED,
)


def fastest(run: GgufRun, most_loss: float, most_prefill_s: float) -> Mix:
    """The mix of least time within a sum of losses and a time of a prompt."""
    names, untimed = list(run.losses), {"token_embd.weight"} if "output.weight" in run.shapes else set()
    kinds = [list(run.losses[name]) for name in names]

    def option(name: str, kind: str) -> Option:
        key = (kind, run.shapes[name])
        prompt_s = run.prompt_prices.get(key, 0.0) if name.startswith("blk.") else 0.0
        step_s = 0.0 if name in untimed else run.prices[key]
        return Option(loss=step_s, costs={"loss": run.losses[name][kind], "prefill": prompt_s})

    parts = [[option(name, kind) for kind in own] for name, own in zip(names, kinds, strict=True)]
    limits = {"loss": most_loss, "prefill": most_prefill_s - run.prompt_rest_s}
    return {name: own[i] for name, own, i in zip(names, kinds, choose(parts, limits), strict=True)}


def measured(run: GgufRun, own: tuple[GgufMix, Mix], other: tuple[GgufMix, Mix]) -> dict[str, str]:
    """Times in turns, and divergences on held-out text, of a mix and its rival."""
    (mix_s, rival_s), again = run.race([(own[1], "f16"), (other[1], "f16")])
    (found, kl), (rival, rival_kl) = run.measure(*own), run.measure(*other)
    run.forget(own[1])
    return {
        "rival_nats": f"{rival.loss:.6f}",
        "mix_nats": f"{found.loss:.6f}",
        "difference_error": f"{(rival_kl - kl).std(ddof=1) / len(kl) ** 0.5:.6f}",
        "rival_ms": f"{1e3 * rival_s.step_s:.4f}",
        "mix_ms": f"{1e3 * mix_s.step_s:.4f}",
        "faster": f"{rival_s.step_s / mix_s.step_s:.4f}",
        "rival_prefill_ms": f"{1e3 * rival_s.prefill_s:.3f}",
        "mix_prefill_ms": f"{1e3 * mix_s.prefill_s:.3f}",
        "repeatability": f"{again:.4f}",
    }


def main() -> None:
    """Chooses, writes, races, measures and writes a row for each single format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--levels", nargs="*", default=KINDS, help="allowed nats a token, or formats that lose them")
    parser.add_argument("--promises", action="store_true", help="write and race no file")
    parser.add_argument("--work", type=Path, default=Path("runs/gguf-chips"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    file, rows = GgufFile.open(args.model), resumable_rows.read(args.out)
    kept = Kept(args.work, "gguf-chips", resume=True)
    run = GgufRun(file, args.data, kept, device=None, seed=0, on_progress=Progress())
    single = {kind: {name: fallback(kind, width) for name, (_, width) in run.shapes.items()} for kind in KINDS}
    promised = {kind: run.promise(kind, mix, {}) for kind, mix in single.items()}
    for kind, each in promised.items():
        print(kind, f"{each.size_bytes:,} bytes, {each.predicted_loss:.4f} nats, {1e3 * each.predicted_s:.3f} ms")
    import_module(ggml().package.replace("-python", "").replace("-", "_"))  # so that its version is written
    for level in args.levels:
        if any(row["model"] == args.model.stem and row["level"] == level for row in rows):
            continue
        most = promised[level].predicted_loss if level in promised else float(level)
        rival = min((k for k in KINDS if promised[k].predicted_loss <= most), key=lambda k: promised[k].predicted_s)
        mix = fastest(run, most, promised[rival].predicted_prefill_s)
        promise = run.promise(f"fastest at {level}", mix, {})
        row = {
            "model": args.model.stem,
            "level": level,
            "rival": rival,
            "formats": shares(run, mix),
            "rival_bytes": str(promised[rival].size_bytes),
            "mix_bytes": str(promise.size_bytes),
            "rival_promised_nats": f"{promised[rival].predicted_loss:.6f}",
            "mix_promised_nats": f"{promise.predicted_loss:.6f}",
            "rival_promised_ms": f"{1e3 * promised[rival].predicted_s:.4f}",
            "mix_promised_ms": f"{1e3 * promise.predicted_s:.4f}",
            "promised_faster": f"{promised[rival].predicted_s / promise.predicted_s:.4f}",
            **dict.fromkeys(MEASURED, ""),
        }
        if not args.promises:
            row |= measured(run, (promise, mix), (promised[rival], single[rival]))
        resumable_rows.add(rows, row, args.out, COLUMNS)


if __name__ == "__main__":
    main()
