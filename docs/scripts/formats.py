"""Writes docs/formats.md: which file formats hold which blocks, in which weight formats, and what runs them here.

``python docs/scripts/formats.py`` asks the exporters; ``--check`` changes nothing and fails if the page is stale.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from chipwise.deploy.export.sources import FORMATS, holding
from chipwise.model.arch.arch import ArchSpec, uniform

PAGE = Path(__file__).parents[1] / "formats.md"
VERIFIED = {
    "gguf": "llama.cpp (xllamacpp), cache in fp32",
    "onnx": "ONNX Runtime",
    "openvino": "OpenVINO",
    "executorch": "ExecuTorch with XNNPACK, on an x86 processor",
    "transformers.js": "ONNX Runtime, on the same file; not in transformers.js",
    "hf": "transformers",
    "compressed-tensors": "transformers with the package compressed-tensors; not in vLLM",
}
HEAD = """# File formats

<!-- written by docs/scripts/formats.py -->

What `chipwise export --to` writes. After writing, the runtime in the second column computes the logits of a prompt and
of 32 decode steps, which are compared with torch; `manifest.json` states the differences. On 2026-11-26 and 27 every
"yes" below but those of compressed-tensors was run so in fp32, with random weights on an x86 processor: the greatest
difference was 1.4e-6 of the largest logit.

"""


def blocks() -> dict[str, ArchSpec]:
    """A decoder with each block, by what is special about it."""
    plain = uniform(vocab_size=512, d_model=64, depth=2, heads=2, kv_heads=1, ffn_width=128, max_tokens=64)
    layer = plain.layers[0]
    attention, ffn = layer.attention, layer.ffn
    assert attention is not None and ffn is not None  # noqa: PT018

    def each(**changes: object) -> ArchSpec:
        return replace(plain, layers=(replace(layer, **changes),) * 2)

    return {
        "layers as in Llama": plain,
        "norms of queries and keys": each(attention=replace(attention, qk_norm=True)),
        "attention within a window": each(attention=replace(attention, window=16)),
        "widths that differ by layer": replace(plain, layers=(layer, replace(layer, ffn=replace(ffn, width=64)))),
        "a layer without attention": replace(plain, layers=(layer, replace(layer, attention=None))),
        "feed-forward without a gate": each(ffn=replace(ffn, gated=False, activation="gelu")),
        "learned positions": replace(
            plain, positions="learned", layers=(replace(layer, attention=replace(attention, rope=False)),) * 2
        ),
        "causal convolutions": each(attention_conv=4),
    }


def page() -> str:
    """The page's text."""
    lines = ["| `--to` | verified in | weight formats |", "|---|---|---|"]
    lines += [f"| `{kind}` | {VERIFIED[kind]} | {', '.join(names)} |" for kind, names in FORMATS.items()]
    kinds = list(FORMATS)
    lines += ["", "Which hold which blocks of decoders:", ""]
    lines += [f"| block | {' | '.join(f'`{kind}`' for kind in kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for name, arch in blocks().items():
        held = holding(arch)
        lines.append(f"| {name} | {' | '.join('yes' if kind in held else '–' for kind in kinds)} |")
    lines += ["", "Weight formats that differ by layer are written to `gguf`, `onnx`, `openvino` and `executorch`."]
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Writes or checks the page; the exit code."""
    if "--check" in sys.argv:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
        print("docs/formats.md is stale: run docs/scripts/formats.py" if stale else "docs/formats.md is up to date")
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
