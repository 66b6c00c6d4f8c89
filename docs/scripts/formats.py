"""Writes docs/formats.md: which file formats can represent which blocks, in which weight formats, and what runs them.

``python docs/scripts/formats.py`` reads the tables that ``benchmarks/exports.py`` wrote; ``--check`` changes nothing
and fails if the page is stale.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

from chipwise.deploy.export.sources import FORMATS, holding
from chipwise.model.arch.arch import ArchSpec, uniform

PAGE = Path(__file__).parents[1] / "formats.md"
RESULTS = Path(__file__).parents[2] / "benchmarks"
MODELS = {
    "uniform": "four equal layers of width 256",
    "layers that differ": "four layers whose feed-forwards have different widths",
    "mixed formats": "the same four layers, with different weight formats",
    "MiniLM": "all-MiniLM-L6-v2",
    "SmolLM2-135M": "SmolLM2-135M",
}
"""Titles of the larger models of ``benchmarks/exports.py``; its other models are those of :func:`blocks`."""
LIKE = {"SmolLM2-135M": "layers as in Llama"}
TESTED = {
    ("gguf", "llama.cpp"),
    ("onnx", "onnxruntime"),
    ("openvino", "openvino"),
    ("executorch", "executorch"),
    ("litert", "litert"),
    ("hf", "transformers"),
}
"""File formats and runtimes in which tests/unit/test_formats_page.py runs every block in fp32."""
TITLES = {
    "onnxruntime": "ONNX Runtime",
    "browser": "ONNX Runtime Web in Chromium",
    "openvino": "OpenVINO",
    "executorch": "ExecuTorch (XNNPACK)",
    "litert": "LiteRT (XNNPACK)",
    "llama.cpp": "llama.cpp (xllamacpp)",
    "transformers": "transformers",
    "transformers.js": "transformers.js in Chromium",
    "torch": "PyTorch",
    "vllm": "vLLM",
    "coreml": "Core ML",
}
HEAD = """# File formats

<!-- written by docs/scripts/formats.py -->

This page lists the files that `chipwise export --to` writes, and the runtimes in which they were checked.
`benchmarks/exports.py` wrote the models below in every file format that can represent them, and ran the files
({machine}; {dates}). It compared their logits with those of chipwise's torch module, after a prompt of 16 tokens and
after each of up to 239 single steps (caches in fp32). A cell of the second table lists the weight formats in which the
file was run and was within its tolerance. In fp32 no logit may be off by more than 1e-4 of the largest logit. In other
weight formats the perplexity of held-out text may differ by at most 1 % from chipwise's own evaluation of that weight
format in torch (for MiniLM: the cosine of the embeddings must be at least 0.99). "Yes" means that the tests run the
file, but only in fp32 and with random weights. "Unverified" means that the file can be written, but was not run or is
outside its tolerance.

"""


def blocks() -> dict[str, ArchSpec]:
    """Small decoders, each with one special block; the keys name what is special."""
    plain = uniform(vocab_size=512, d_model=64, depth=2, heads=2, kv_heads=1, ffn_width=128, max_tokens=256)
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


def results() -> list[dict[str, str]]:
    """The rows of all tables that ``benchmarks/exports.py`` wrote."""
    rows: list[dict[str, str]] = []
    for path in sorted(RESULTS.glob("exports-*.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            rows += csv.DictReader(stream)
    return rows


def page() -> str:
    """The page's text."""
    rows = results()
    columns = [(kind, name) for kind in (*FORMATS, "torch") for name in _runtimes(rows, kind)]
    lines = [
        "| `--to` | runtime | greatest difference (fp32: of logits; other formats: of perplexity) |",
        "|---|---|---|",
    ]
    for kind, runtime in columns:
        mine = [row for row in rows if (row["to"], row["runtime"]) == (kind, runtime)]
        versions = sorted({row["version"] for row in mine if row["version"]})
        lines.append(f"| {_kind(kind)} | {TITLES[runtime]} {', '.join(versions)} | {_differences(mine)} |")
    lines += ["", "Weight formats in which each block and model was verified, by file format and runtime:", ""]
    lines.append(f"| model | {' | '.join(f'{_kind(kind)}, {TITLES[name]}' for kind, name in columns)} |")
    lines.append(f"|---|{'---|' * len(columns)}")
    archs = blocks()
    found = {(row["model"], row["to"], row["runtime"], row["weights"]): row for row in rows}
    for model, title in (dict.fromkeys(archs, "") | MODELS).items():
        cells = []
        for kind, runtime in columns:
            names = [key[3] for key in found if key[:3] == (model, kind, runtime)]
            good = [name for name in names if found[model, kind, runtime, name]["verified"] == "yes"]
            good = ["int8 and int4" if "/" in name else name for name in good]
            held = kind in holding(archs[LIKE.get(model, model)]) if LIKE.get(model, model) in archs else bool(names)
            tested = model in archs and (kind, runtime) in TESTED
            cells.append(", ".join(good) or ("–" if not held else "yes" if tested else "unverified"))
        lines.append(f"| {title or model} | {' | '.join(cells)} |")
    lines += [
        "",
        "“–”: the format cannot represent the model.",
        "In the PyTorch column, “–” means only that the model was not run in PyTorch.",
        "",
        *_others(rows),
    ]
    return HEAD.format(**_origin(rows)) + "\n".join(lines) + "\n"


def _kind(kind: str) -> str:
    return kind if kind == "torch" else f"`{kind}`"


def _runtimes(rows: list[dict[str, str]], kind: str) -> list[str]:
    return list(dict.fromkeys(row["runtime"] for row in rows if row["to"] == kind))


def _differences(rows: list[dict[str, str]]) -> str:
    """For each weight format, the greatest difference over the models that were run."""
    parts = []
    for form in dict.fromkeys(row["weights"] for row in rows if "/" not in row["weights"]):
        run = [row for row in rows if row["weights"] == form and row["verified"]]
        if form == "fp32" and run:
            parts.append(f"{form}: {max(float(row['logits_off']) for row in run):.1e}")
        elif changes := [abs(float(row["perplexity_change"])) for row in run if row["perplexity_change"]]:
            parts.append(f"{form}: {100 * max(changes):.2g} %")
        else:
            parts.append(f"{form}: unverified" if not run else form)
    return ", ".join(parts)


def _others(rows: list[dict[str, str]]) -> list[str]:
    """Lines that name the files outside their tolerance, and the files that were not run, with the reason."""
    lines = []
    for row in rows:
        where = f"{row['model']} as {row['to']} in {row['weights']}, run in {TITLES[row['runtime']]}"
        if row["verified"] == "no":
            change = row["perplexity_change"] and f": perplexity {100 * float(row['perplexity_change']):+.2g} %"
            lines.append(f"- Outside its tolerance: {where}{change} over {int(row['steps']) + 1} tokens.")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["not_run"]:
            reasons.setdefault((row["to"], row["runtime"], row["not_run"]), []).append(
                f"{row['model']} {row['weights']}"
            )
    for (kind, runtime, why), which in reasons.items():
        models = "all" if len(which) > 3 else ", ".join(which)
        lines.append(f"- Unverified: {kind} in {TITLES[runtime]} ({models}): {why}.")
    return lines


def _origin(rows: list[dict[str, str]]) -> dict[str, str]:
    return {
        "machine": " and ".join(dict.fromkeys(row["machine"] for row in rows)),
        "dates": " and ".join(dict.fromkeys(row["date"] for row in rows)),
    }


def main() -> int:
    """Writes or checks the page. Returns the exit code."""
    if "--check" in sys.argv:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
        print("docs/formats.md is stale: run docs/scripts/formats.py" if stale else "docs/formats.md is up to date")
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
