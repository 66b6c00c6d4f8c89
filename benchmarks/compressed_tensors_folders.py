"""Whether fp8 and int4 compressed-tensors folders load in transformers on a CPU, with the promised loss.

    python benchmarks/compressed_tensors_folders.py FOLDER --texts 64 --out FILE.csv     # a decoder's folder

Needs ``pip install compressed-tensors`` (and loguru), in an environment of its own. ``promised`` is what
``chipwise export`` states: the mean KL divergence in nats from the original on calibration text (for fp8 with rounded
activations). ``measured`` is that of transformers' model, loaded from the folder in FP32, on other text, with its
standard error over texts. vLLM was not run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import chipwise
import resumable_rows
from chipwise.design.models import calibration_data
from chipwise.training.data.text import load_corpus

COLUMNS = ("model", "weights", "method", "bytes", "promised", "measured", "std_error", "same_choice", "cpu_s")


def main() -> None:
    """Exports, loads, judges and writes a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=128, help="of calibration, and as many to judge by")
    parser.add_argument("--methods", nargs="+", default=["nearest", "gptq"], help="for int4")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    calibration_data.TEXTS = args.texts
    rows = resumable_rows.read(args.out)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    held = load_corpus({"source": "medical-definitions"}).test
    chosen = [held[i] for i in np.linspace(0, len(held) - 1, args.texts).astype(int)]
    tokens = [torch.tensor([ids[:128]]) for text in chosen if len(ids := tokenizer(text).input_ids) > 1]
    original = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    wanted = [logits_of(original, each) for each in tokens]
    for weights, method in [*(("int4", method) for method in args.methods), ("fp8", "auto")]:
        with TemporaryDirectory() as room:
            begun = time.process_time()
            found = chipwise.export(
                args.model,
                to="compressed-tensors",
                weights=weights,
                method=method,
                data="medical-definitions",
                out=Path(room) / "out",
                verify=False,
            )
            spent = time.process_time() - begun
            model = AutoModelForCausalLM.from_pretrained(found.folder, dtype=torch.float32).eval()
            given = [logits_of(model, each) for each in tokens]
        lost = [float((w.exp() * (w - g)).sum(-1).mean()) for g, w in zip(given, wanted, strict=True)]
        same = [float((g.argmax(-1) == w.argmax(-1)).float().mean()) for g, w in zip(given, wanted, strict=True)]
        promised = found.quantiser.losses.get(found.quantiser.method)
        row = {
            "model": args.model.name,
            "weights": weights,
            "method": found.quantiser.method,
            "bytes": str(found.files["model.safetensors"]),
            "promised": "" if promised is None else f"{promised:.5f}",
            "measured": f"{np.mean(lost):.5f}",
            "std_error": f"{np.std(lost, ddof=1) / np.sqrt(len(lost)):.5f}",
            "same_choice": f"{np.mean(same):.4f}",
            "cpu_s": f"{spent:.1f}",
        }
        resumable_rows.add(rows, row, args.out, COLUMNS)


def logits_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Logarithms of the next token's probabilities (T, V)."""
    with torch.no_grad():
        return torch.log_softmax(model(tokens).logits[0].float(), dim=-1)


if __name__ == "__main__":
    main()
