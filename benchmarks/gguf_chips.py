"""Does the chip matter? Mixes of GGUF formats chosen for one chip, and what each loses on the others.

    python benchmarks/gguf_chips.py MODEL.gguf --data notes.txt --data manual.txt --out chips.csv

For each chip the mix of least divergence is chosen that takes no more time for a token than stock Q4_K_M takes there
(``limits`` = time), and no more memory either (``time and size``). Times are measured on this machine in llama.cpp's
kernels, and predicted from data sheets for the others. A row has the mix of ``chosen_for`` on ``chip``: its time there
over the limit, its predicted divergence, and that of the chip's own choice with the time and the size of this mix.
``more`` is how much more divergence the mix has than that choice: what is lost by not choosing for the chip.

Another build of llama.cpp on this machine is a chip, too: ``--work A --promises`` with one build measures its prices,
``--work B --also A`` with the other compares both, whose instruction sets name them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from importlib import import_module
from pathlib import Path

import resumable_rows
from chipwise.cli.stages import Progress
from chipwise.deploy.export.gguf_mix import Mix, mix_bytes, stock_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import ggml
from chipwise.design.quantize.answers import Kept
from chipwise.design.quantize.gguf_run import USUAL, GgufRun

HERE = "this machine"
CHIPS = (HERE, "apple-m4-max", "rtx-4070", "snapdragon-8-elite", "raspberry-pi-5")
BUILD = "vectors.txt"  # the instruction sets of the build that measured, in its folder
LIMITS = {"time": ("time",), "time and size": ("time", "size")}
COLUMNS = (
    "model",
    "limits",
    "chosen_for",
    "chip",
    "formats",
    "bytes",
    "kl_nats",
    "step_ms",
    "of_q4_k_m",
    "own_kl_nats",
    "more",
)


def shares(run: GgufRun, mix: Mix) -> str:
    """The formats of a mix with their shares of all weights."""
    sizes = Counter[str]()
    for name, kind in mix.items():
        sizes[kind] += run.shapes[name][0] * run.shapes[name][1]
    return " ".join(f"{kind}:{size / sum(sizes.values()):.3f}" for kind, size in sizes.most_common())


def main() -> None:
    """Chooses for each chip, prices each choice on each chip, and writes a row for every pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/gguf-chips"))
    parser.add_argument("--promises", action="store_true", help="measure this machine's prices alone")
    parser.add_argument("--also", type=Path, help="--work of another build on this machine, beside this one alone")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    import_module(ggml().package.replace("-python", "").replace("-", "_"))  # so that its version is written
    file, rows = GgufFile.open(args.model), list[resumable_rows.Row]()
    build = ggml().vectors()
    places = {HERE: args.work} if args.promises else dict.fromkeys(CHIPS, args.work)
    if args.also is not None:
        places = {build: args.work, (args.also / BUILD).read_text(): args.also}
    runs = {
        chip: GgufRun(
            file,
            args.data,
            Kept(place, "gguf-chips", resume=True),
            device=chip if chip in CHIPS[1:] else None,
            seed=0,
            on_progress=Progress(),
        )
        for chip, place in places.items()
    }
    (args.work / BUILD).write_text(build)
    if args.promises:
        return
    known = [{kind for own in run.losses.values() for kind in own} for run in runs.values()]
    common = set.intersection(*known)  # formats that all chips have a price for
    for run in runs.values():
        run.losses = {name: {k: x for k, x in own.items() if k in common} for name, own in run.losses.items()}
    usual = stock_mix(USUAL, file)
    stock = {chip: run.promise(USUAL, usual, {}) for chip, run in runs.items()}
    for limits, names in LIMITS.items():
        mixes = {}
        for chip, run in runs.items():
            most = {"time": stock[chip].predicted_s, "size": stock[chip].size_bytes}
            mixes[chip], _ = run.choose({name: 1.000001 * most[name] for name in names})
        mixes[f"all, stock {USUAL}"] = usual
        for owner, mix in mixes.items():
            for chip, run in runs.items():
                promise = run.promise(owner, mix, {})
                most = {"time": promise.predicted_s, "size": mix_bytes(file, mix)}
                own, _ = run.choose({name: 1.000001 * most[name] for name in names})
                own_kl = run.promise(chip, own, {}).predicted_loss
                row = {
                    "model": args.model.stem,
                    "limits": limits,
                    "chosen_for": owner,
                    "chip": chip,
                    "formats": shares(run, mix),
                    "bytes": str(promise.size_bytes),
                    "kl_nats": f"{promise.predicted_loss:.5f}",
                    "step_ms": f"{1e3 * promise.predicted_s:.4f}",
                    "of_q4_k_m": f"{promise.predicted_s / stock[chip].predicted_s:.4f}",
                    "own_kl_nats": f"{own_kl:.5f}",
                    "more": f"{promise.predicted_loss / own_kl - 1:.4f}",
                }
                resumable_rows.add(rows, row, args.out, COLUMNS)


if __name__ == "__main__":
    main()
