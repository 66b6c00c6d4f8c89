"""Do formats by matrix beat the best uniform format? Decode steps of a trained design in ONNX Runtime.

    python benchmarks/matrix_formats.py --work runs/quantisers --model wide --out FILE.csv

Each matrix is tried in int8 and int4 (GPTQ), the largest first, and stays narrow where the step gets faster and bits
per byte of held-out text rise by at most ``--allowed`` in all. Then that file and the uniform ones are timed in turns,
by CPU time, with the FP32 file against itself as repeatability. A uniform format that loses more than ``--allowed`` is
out of the contest.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import resumable_rows
from chipwise.deploy.export.onnx import export
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import gptq
from chipwise.model.blocks.quantize import Packing
from chipwise.training.tasks.exported_text import exported_bits
from chipwise.training.tasks.selective_precision import select
from quantisers import Decoder

COLUMNS = ("model", "formats", "weights", "loss", "step_us", "of_fp32", "repeatability", "cpu_s")
PROMPT, STEPS, ROUNDS, HELD_BYTES = 32, 32, 40, 40_000


def main() -> None:
    """Chooses, times and writes a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/quantisers"))
    parser.add_argument("--model", default="wide")
    parser.add_argument("--allowed", type=float, default=0.002, help="rise of bits per byte, as a share")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    item = Decoder(args.work, args.model)
    stream, size = item.data.held_out("validation", max_bytes=HELD_BYTES)
    packing = Packing(quantiser=gptq, inputs=item.inputs(item.arch, item.weights))
    begun = time.process_time()

    with TemporaryDirectory() as room:
        folder = Path(room)

        def bits(design: Design) -> float:
            return float(exported_bits(design, item.weights, stream, folder / "b.onnx", packing=packing).sum()) / size

        whole = bits(Design(arch=item.arch))

        def judged(design: Design, _: Path) -> float:
            return 0.5 * bits(design) / whole  # below 1, as ``select`` expects

        found = select(
            Design(arch=item.arch),
            item.weights,
            folder,
            opened=lambda path: Steps(path).run,
            judged=judged,
            forms=("int8", "int4"),
            allowed=args.allowed,  # 0.5 rises by at most a half of ``allowed``
            packing=packing,
            clock=time.process_time,
        )
        chosen = {"fp32": "fp32", "again": "fp32", "int8": "int8", "int4": "int4", "by matrix": found.weights}
        losses = {name: bits(Design(arch=item.arch, weights=weights)) / whole - 1 for name, weights in chosen.items()}
        runs = {}
        for name, weights in chosen.items():
            path = folder / f"{name}.onnx"
            runs[name] = Steps(export(Design(arch=item.arch, weights=weights), item.weights, path, packing=packing))
        seconds = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, each in runs.items():
                start = time.process_time()
                each.run()
                seconds[name].append((time.process_time() - start) / STEPS)
    least = {name: min(each) for name, each in seconds.items()}
    rows = resumable_rows.read(args.out)
    for name, weights in chosen.items():
        if name != "again":
            row = {
                "model": args.model,
                "formats": name,
                "weights": weights,
                "loss": f"{losses[name]:.5f}",
                "step_us": f"{1e6 * least[name]:.2f}",
                "of_fp32": f"{least[name] / least['fp32']:.4f}",
                "repeatability": f"{abs(least['again'] / least['fp32'] - 1):.4f}",
                "cpu_s": f"{time.process_time() - begun:.0f}",
            }
            resumable_rows.add(rows, row, args.out, COLUMNS)


class Steps:
    """Decode steps after a prompt."""

    def __init__(self, path: Path) -> None:
        self.session = OnnxRuntimeSession(path, capacity=PROMPT + STEPS + 1)
        self.prompt = np.random.default_rng(0).integers(1, 1000, (1, PROMPT))

    def run(self) -> None:
        """A prompt's steps after its first pass, which is short."""
        self.session.prefill(self.prompt)
        for _ in range(STEPS):
            self.session.decode(self.prompt[:, :1])


if __name__ == "__main__":
    main()
