"""Does a quantisation-aware end of training beat GPTQ, at equal CPU time of training?

    python benchmarks/quantisation_aware.py --work runs/quantisers --model usual --cpu-seconds 168 --out FILE.csv

Both trainings go on from the same state, before the decay of the rates, for the same CPU seconds. In one of them the
decay runs with the layers' matrices rounded to int4 (groups of 32) in each forward pass; gradients pass straight
through. Losses are bits per byte of held-out text by the exported files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import torch
from torch import Tensor

import resumable_rows
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.blocks.quantize import Packing
from chipwise.training.loop.evaluate import read
from chipwise.training.loop.trainer import train
from quantised_designs import DESIGNS, text
from quantisers import Decoder

COLUMNS = ("model", "training", "cpu_s", "fp32", "nearest", "gptq")


class Aware:
    """A data set whose losses are those of the rounded model."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def loss(self, model: torch.nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The loss with rounded matrices; its gradients are taken for the matrices before rounding."""
        held = [(p, p.data) for name, p in model.named_parameters() if name.startswith("layers.") and p.ndim == 2]
        for parameter, value in held:
            parameter.data = rounded(value)
        try:
            return self._data.loss(model, batch, dtype)
        finally:
            for parameter, value in held:
                parameter.data = value


def rounded(weight_NK: Tensor) -> Tensor:
    """The nearest int4 values in groups of 32, the extreme one at -8."""
    n, k = weight_NK.shape
    groups = torch.nn.functional.pad(weight_NK, (0, -k % 32)).view(n, -1, 32)
    scale = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (torch.clamp(torch.round(groups / scale), -8, 7) * scale).view(n, -1)[:, :k]


def main() -> None:
    """Trains twice and writes a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/quantisers"))
    parser.add_argument("--model", choices=DESIGNS, default="usual")
    parser.add_argument("--cpu-seconds", type=float, default=168.0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    item, rows = Decoder(args.work, args.model), resumable_rows.read(args.out)
    for kind, data in (("as usual", text(args.work)), ("quantisation-aware", Aware(text(args.work)))):
        folder = args.work / kind.replace(" ", "-") / args.model
        if not folder.exists():
            copytree(args.work / args.model, folder)
            for path in (*folder.glob("weights-*"), *folder.glob("result-*")):
                path.unlink()
        found = train(item.arch, data, cpu_budget_s=args.cpu_seconds, seed=0, folder=folder)
        weights = read(found.weights)
        inputs = item.inputs(item.arch, weights)
        losses = {"fp32": item.file_loss(Design(arch=item.arch), weights, Packing())}
        for name in ("nearest", "gptq"):
            packing = Packing(quantiser=QUANTISERS[name], inputs=inputs)
            losses[name] = item.file_loss(Design(arch=item.arch, weights="int4"), weights, packing)
        row = {"model": args.model, "training": kind, "cpu_s": f"{args.cpu_seconds:g}"}
        resumable_rows.add(rows, row | {name: f"{loss:.5f}" for name, loss in losses.items()}, args.out, COLUMNS)


if __name__ == "__main__":
    main()
