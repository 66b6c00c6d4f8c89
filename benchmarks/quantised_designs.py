"""Five small trained designs, which benchmarks/quantisers.py rounds.

python benchmarks/quantised_designs.py --work runs/quantisers --cpu-seconds 150     # run again to go on
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.data.tokens import TokenData
from chipwise.training.loop.trainer import train

VOCABULARY = 1024
_SHARED = {"vocab_size": VOCABULARY, "max_tokens": 256}


def _mixed() -> ArchSpec:
    """Layers of two widths, with convolutions before the blocks of the first."""
    base = uniform(**_SHARED, d_model=128, depth=4, heads=4, kv_heads=2, ffn_width=256, name="mixed")
    wide = replace(base.layers[0].ffn, width=512)
    first = replace(base.layers[0], attention_conv=4, ffn_conv=4)
    return replace(base, layers=(first, base.layers[1], replace(base.layers[2], ffn=wide), base.layers[3]))


DESIGNS: Mapping[str, ArchSpec] = {
    each.name: each
    for each in (
        uniform(**_SHARED, d_model=128, depth=4, heads=4, ffn_width=384, name="usual"),
        uniform(**_SHARED, d_model=256, depth=2, heads=4, kv_heads=2, ffn_width=512, name="wide"),
        uniform(**_SHARED, d_model=96, depth=6, heads=3, kv_heads=1, ffn_width=256, name="deep"),
        uniform(**_SHARED, d_model=160, depth=3, heads=5, ffn_width=480, activation="gelu", gated=False, name="plain"),
        _mixed(),
    )
}


def text(work: Path) -> TokenData:
    """The medical definitions that chipwise's examples use, in 1,024 tokens."""
    corpus = load_corpus({"source": "medical-definitions"})
    return TokenStore(corpus, work / "corpus", sizes=[VOCABULARY]).tokens(VOCABULARY)


def weights_of(work: Path, name: str, cpu_s: float) -> Path:
    """The trained weights of a design; trains it at the first call."""
    found = train(DESIGNS[name], text(work), cpu_budget_s=cpu_s, seed=0, folder=work / name)
    print(f"{name}: {DESIGNS[name].parameters():,} parameters, {found.loss:.4f} bits per byte", flush=True)
    return Path(found.weights)


def main() -> None:
    """Trains what is not trained yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/quantisers"))
    parser.add_argument("--cpu-seconds", type=float, default=150.0)
    parser.add_argument("--models", nargs="+", choices=DESIGNS, default=[*DESIGNS])
    args = parser.parse_args()
    for each in args.models:
        weights_of(args.work, each, args.cpu_seconds)


if __name__ == "__main__":
    main()
