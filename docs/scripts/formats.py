"""Writes docs/formats.md: which file formats hold which blocks, in which weight formats, and what runs them here.

``python docs/scripts/formats.py`` reads the rows of ``benchmarks/exports.py``; ``--check`` changes nothing and fails if
the page is stale.
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
    "uniform": "uniform, 256×4",
    "layers that differ": "layers that differ",
    "mixed formats": "formats that differ by layer",
    "MiniLM": "all-MiniLM-L6-v2",
    "SmolLM2-135M": "SmolLM2-135M",
}
"""Names of the larger models of ``benchmarks/exports.py``; its others are the blocks below."""
LIKE = {"SmolLM2-135M": "layers as in Llama"}
TESTED = {
    ("gguf", "llama.cpp"),
    ("onnx", "onnxruntime"),
    ("openvino", "openvino"),
    ("executorch", "executorch"),
    ("litert", "litert"),
    ("hf", "transformers"),
}
"""What tests/unit/test_formats_page.py runs, with all blocks in fp32."""
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

What `chipwise export --to` writes, and what was run. `benchmarks/exports.py` wrote the models below in every format
that holds them, ran the files on {machine} on {dates}, and compared logits after a prompt of 16 tokens and after each
of up to 239 single steps (caches in fp32). A weight format is in a cell if it was run there and is within its
tolerance: in fp32 no logit is off by more than 1e-4 of the largest; in the others the perplexity of held-out text
differs by at most 1 % from chipwise's own evaluation of that weight format in torch (for MiniLM: the embedding's cosine
is at least 0.99).
"yes": run in fp32 alone, with random weights, by the tests. "Unverified": the file can be written, and was not run
there, or is outside its tolerance.

"""


def blocks() -> dict[str, ArchSpec]:
    """A decoder with each block, by what is special about it."""
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
    """The rows of the benchmark's tables."""
    rows: list[dict[str, str]] = []
    for path in sorted(RESULTS.glob("exports-*.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            rows += csv.DictReader(stream)
    return rows


def page() -> str:
    """The page's text."""
    rows = results()
    columns = [(kind, name) for kind in (*FORMATS, "torch") for name in _runtimes(rows, kind)]
    lines = ["| `--to` | run in | weight formats: greatest difference |", "|---|---|---|"]
    for kind, runtime in columns:
        mine = [row for row in rows if (row["to"], row["runtime"]) == (kind, runtime)]
        versions = sorted({row["version"] for row in mine if row["version"]})
        lines.append(f"| {_kind(kind)} | {TITLES[runtime]} {', '.join(versions)} | {_differences(mine)} |")
    lines += ["", "In which weight formats each block and model was verified, by file format and runtime:", ""]
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
    lines += ["", "“–”: the format does not hold the model. `torch` files are for measuring alone.", "", *_others(rows)]
    return HEAD.format(**_origin(rows)) + "\n".join(lines) + "\n"


def _kind(kind: str) -> str:
    return kind if kind == "torch" else f"`{kind}`"


def _runtimes(rows: list[dict[str, str]], kind: str) -> list[str]:
    return list(dict.fromkeys(row["runtime"] for row in rows if row["to"] == kind))


def _differences(rows: list[dict[str, str]]) -> str:
    """The greatest difference in each weight format over the models that were run."""
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
    """What is not within its tolerance, and what was not run and why."""
    lines = []
    for row in rows:
        where = f"{row['model']} as {row['to']} in {row['weights']}, {TITLES[row['runtime']]}"
        if row["verified"] == "no":
            change = row["perplexity_change"] and f", perplexity {100 * float(row['perplexity_change']):+.2g} %"
            lines.append(f"- Outside its tolerance: {where}{change}, over {int(row['steps']) + 1} tokens.")
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
    """Writes or checks the page; the exit code."""
    if "--check" in sys.argv:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
        print("docs/formats.md is stale: run docs/scripts/formats.py" if stale else "docs/formats.md is up to date")
        return int(stale)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
