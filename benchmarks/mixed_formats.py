"""Benefit of a weight format per layer: quality and price of every choice of formats of a run's contenders.

    python benchmarks/mixed_formats.py --run runs/clinic --out mixed-formats.csv

Quality is that of the exported ONNX file on the first ``--bytes`` of the run's validation text. Seconds and memory are
predicted by the run's calibrated profile; nothing is timed. At the end the front of each model is printed: choices
where none that costs fewer bits per byte is predicted to take no more time a token and no more memory. A call that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import resumable_rows
from chipwise.design.report.record import load
from chipwise.design.run.spec import run_spec
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import formats_word
from chipwise.model.ops.workload import Phase
from chipwise.model.space.designs import design_of, summary
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.training.data.tokens import load_tokens
from chipwise.training.loop.evaluate import read
from exported_quality import exported_bits_per_byte
from resumable_rows import Row

FORMATS = ("fp32", "int8", "int4")
COLUMNS = ("trial", "design", "weights", "bytes", "bits_per_byte", "ttft_p50_s", "tpot_p50_s", "peak_memory_bytes")


def choices(design: Design) -> Iterator[Design]:
    """``design`` in every choice of formats; layers that share weights share the format."""
    owners = [i for i, _ in design.arch.owned_layers()]
    for head, *own in itertools.product(FORMATS, repeat=1 + len(owners)):
        of = dict(zip(owners, own, strict=True))
        each = (of[i if layer.shares is None else layer.shares] for i, layer in enumerate(design.arch.layers))
        yield replace(design, weights=formats_word(each, head))


def front(rows: list[Row]) -> list[Row]:
    """The Pareto front of bits per byte, seconds per token and memory, best quality first."""
    costs = ("tpot_p50_s", "peak_memory_bytes")
    kept = []
    for row in sorted(rows, key=lambda row: float(row["bits_per_byte"])):
        if not any(all(float(other[name]) <= float(row[name]) for name in costs) for other in kept):
            kept.append(row)
    return kept


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
    rows = resumable_rows.read(args.out)
    for trial in record.trials:
        if trial.rung != longest or (args.trial and trial.number not in args.trial):
            continue
        design = design_of(trial.choices, spec=spec.space)
        kept = (args.run / "trainings" / design.arch.digest).glob("weights-*.safetensors")
        weights = read(max(kept, key=lambda path: float(path.stem.removeprefix("weights-"))))
        data = load_tokens(args.run / "corpus" / f"tokens-{design.arch.vocab_size}.npz")
        key = {"trial": str(trial.number), "bytes": str(args.bytes)}
        for one in choices(design):
            mine = [row for row in rows if all(row[name] == value for name, value in key.items())]
            if one.weights in {row["weights"] for row in mine}:
                continue
            graphs = (lower(one, spec.workload, phase) for phase in (Phase.PREFILL, Phase.DECODE))
            cost = estimate(one, *graphs, spec.workload, profile)
            with TemporaryDirectory() as room:
                quality = exported_bits_per_byte(one, weights, data, Path(room) / "m.onnx", max_bytes=args.bytes)
            row = {
                "trial": key["trial"],
                "design": summary(replace(one, weights="fp32")).removesuffix(" fp32"),
                "weights": one.weights,
                "bytes": key["bytes"],
                "bits_per_byte": f"{quality:.5f}",
                "ttft_p50_s": f"{cost.ttft_s:.5g}",
                "tpot_p50_s": f"{cost.tpot_s:.5g}",
                "peak_memory_bytes": f"{cost.peak_memory_bytes:.0f}",
            }
            resumable_rows.add(rows, row, args.out, COLUMNS)
        print(f"front of trial {trial.number}:")
        for row in front([row for row in rows if all(row[name] == value for name, value in key.items())]):
            print(" ", *(row[name] for name in COLUMNS[2:]), sep="  ")


if __name__ == "__main__":
    main()
