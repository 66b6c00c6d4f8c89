"""Predicted and measured divergence of llama.cpp's stock mixes, and of exact mixes at their size and priced time.

    python benchmarks/gguf_mixes.py runs/train-nano/model --work runs/gguf-mixes --out mixes.csv

The model is a Hugging Face folder of a decoder trained here (six layers of 256, 8 M parameters). Divergence is the mean
KL of next-token distributions to the FP16 file on 1,024 held-out tokens of medical definitions, computed in torch from
the written files, with activations rounded as llama.cpp's kernels round them. Sizes are of all tensors; times are the
sum of the matrices' prices in ggml's kernels, not of a whole file. Calibration: 2,048 other tokens of the same text.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from chipwise.deploy.export import gguf
from chipwise.deploy.export.gguf_mix import matrices, mix_bytes, stock_mix, write_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.runtimes.ggml import TYPES, ggml
from chipwise.design.quantize.decoder import StreamedDecoder, rounded
from chipwise.design.quantize.losses import measure_losses
from chipwise.design.quantize.mixes import choose_mix, measure_prices
from chipwise.model.arch.design import Design
from chipwise.training.data.text import load_corpus

FORMATS = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K")
STOCK = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
WINDOW = 128


@torch.no_grad()
def log_probabilities(decoder: StreamedDecoder, tokens: np.ndarray, mix: dict[str, str] | None) -> torch.Tensor:
    """Log probabilities (B, T, V); with a mix, inputs of its matrices are rounded as the kernels do."""
    x = decoder.embedded(torch.from_numpy(tokens))
    for number in range(len(decoder.blocks)):
        layer = decoder.layer(number)
        for place, name in decoder.matrix_places(number).items() if mix else ():
            how = TYPES[mix[name]].activations
            layer.get_submodule(place).register_forward_pre_hook(lambda _m, given, how=how: (rounded(given[0], how),))
        x = decoder.run(layer, number, x)
    h = decoder.normed(x)
    h = rounded(h, TYPES[mix[decoder.head_name]].activations) if mix else h
    return (h @ decoder.head().T).log_softmax(-1)


def main() -> None:
    """Calibrates, chooses, writes, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/gguf-mixes"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    arch, weights = load_pretrained(args.model)
    file = GgufFile.open(gguf.export(Design(arch=arch, weights="fp16"), weights, args.work / "original.gguf"))
    text = "\n\n".join(load_corpus({"source": "medical-definitions"}).validation[:400])
    ids = np.array(Tokenizer.from_file(str(args.model / "tokenizer.json")).encode(text).ids[: 24 * WINDOW], np.int64)
    calibration, held = np.split(ids.reshape(24, WINDOW), [16])
    decoder, shapes = StreamedDecoder(file), matrices(file)
    found = measure_losses(decoder, calibration, FORMATS, args.work / "state", seed=0)
    prices = measure_prices(list(shapes.values()), FORMATS, rounds=12)
    original = log_probabilities(decoder, held, None)

    def pack(name: str, kind: str) -> np.ndarray:
        weight = found.importance.get(name, np.ones(shapes[name][1], np.float32))
        return ggml().pack(decoder.matrix(name), TYPES[kind], weight)

    rows = []
    for stock in STOCK:
        mix = stock_mix(stock, file)
        time_s = sum(prices[kind, shapes[name]] for name, kind in mix.items() if name != "token_embd.weight")
        size = sum(TYPES[kind].matrix_bytes(*shapes[name]) for name, kind in mix.items())
        exact = choose_mix(shapes, found.losses, prices, limits={"size": size, "time": time_s})
        for label, each in ((stock, mix), (f"exact at {stock}", exact)):
            made = GgufFile.open(write_mix(file, each, args.work / "mix.gguf", pack, name=label))
            own = log_probabilities(StreamedDecoder(made), held, each)
            kl = (original.exp() * (original - own)).sum(-1).mean(-1)
            rows.append(
                {
                    "mix": label,
                    "bytes": mix_bytes(file, each),
                    "measured_kl_nats": f"{float(kl.mean()):.6f}",
                    "standard_error": f"{float(kl.std() / len(kl) ** 0.5):.6f}",
                    "predicted_kl_nats": f"{sum(found.losses[name][kind] for name, kind in each.items()):.6f}",
                }
            )
            print(rows[-1], flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
