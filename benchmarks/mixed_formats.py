"""Does a weight format for each layer help? Every choice of formats of a run's trained contenders, judged and priced.

    python benchmarks/mixed_formats.py --run runs/clinic --out mixed-formats.csv

Quality is that of the exported ONNX file on the first ``--bytes`` of the run's validation text. Seconds and memory are
predicted by the run's calibrated profile; nothing is timed. A choice is on the front where none of the same model that
costs fewer bits per byte is predicted to take no more time and no more memory.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from chipwise.blocks.lowering import lower
from chipwise.cost import estimate
from chipwise.hardware import MachineProfile
from chipwise.ops import Phase
from chipwise.report.record import load
from chipwise.run.measuring import exported_bits_per_byte
from chipwise.run.spec import run_spec
from chipwise.space.designs import design_of, summary
from chipwise.spec import Design
from chipwise.spec.formats import formats_word
from chipwise.train.evaluate import read
from chipwise.train.tokenizer import load_tokens

FORMATS = ("fp32", "int8", "int4")
COLUMNS = ("trial", "design", "weights", "bits_per_byte", "ttft_p50_s", "tpot_p50_s", "peak_memory_bytes", "front")


def choices(design: Design) -> Iterator[Design]:
    """``design`` in every choice of formats; layers that share weights have one."""
    owners = [i for i, _ in design.arch.owned_layers()]
    for head, *own in itertools.product(FORMATS, repeat=1 + len(owners)):
        of = dict(zip(owners, own, strict=True))
        each = (of[i if layer.shares is None else layer.shares] for i, layer in enumerate(design.arch.layers))
        yield replace(design, weights=formats_word(each, head))


def on_front(rows: list[dict]) -> list[bool]:
    """Which rows no other of fewer bits per byte undercuts in seconds a token and in memory."""
    costs = ("tpot_p50_s", "peak_memory_bytes")
    return [
        not any(
            other["bits_per_byte"] < row["bits_per_byte"] and all(other[name] <= row[name] for name in costs)
            for other in rows
        )
        for row in rows
    ]


def main() -> None:
    """Prints and writes a row for every choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/clinic"))
    parser.add_argument("--trial", type=int, action="append", help="only this trial; may be given again")
    parser.add_argument("--bytes", type=int, default=300_000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    record, profile = load(args.run / "record.json"), MachineProfile.load(args.run / "profile.json")
    spec = run_spec(json.loads((args.run / "spec.json").read_text())["spec"], file="spec.json")
    longest = max(trial.rung or 0 for trial in record.trials)
    rows: list[dict] = []
    for trial in record.trials:
        if trial.rung != longest or (args.trial and trial.number not in args.trial):
            continue
        design = design_of(trial.choices, spec=spec.space)
        kept = (args.run / "trainings" / design.arch.digest).glob("weights-*.safetensors")
        weights = read(max(kept, key=lambda path: float(path.stem.removeprefix("weights-"))))
        data = load_tokens(args.run / "corpus" / f"tokens-{design.arch.vocab_size}.npz")
        mine = []
        for one in choices(design):
            graphs = (lower(one, spec.workload, phase) for phase in (Phase.PREFILL, Phase.DECODE))
            cost = estimate(one, *graphs, spec.workload, profile)
            with TemporaryDirectory() as room:
                quality = exported_bits_per_byte(one, weights, data, Path(room) / "m.onnx", max_bytes=args.bytes)
            mine.append(
                {
                    "trial": trial.number,
                    "design": summary(replace(one, weights="fp32")).removesuffix(" fp32"),
                    "weights": one.weights,
                    "bits_per_byte": round(quality, 5),
                    "ttft_p50_s": float(f"{cost.ttft_s:.5g}"),
                    "tpot_p50_s": float(f"{cost.tpot_s:.5g}"),
                    "peak_memory_bytes": round(cost.peak_memory_bytes),
                }
            )
            print(*list(mine[-1].values())[2:], flush=True)
        rows += [row | {"front": front} for row, front in zip(mine, on_front(mine), strict=True)]
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
