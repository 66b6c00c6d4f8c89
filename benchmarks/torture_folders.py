"""The bad inputs of torture.py that are folders: a winner's folder in which one file is damaged or missing.

A file that a command does not read may be damaged without harm; those cases say ``rows``, and only a traceback or a
hang is wrong in them.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torture_inputs import BROKEN, FIFO, FOLDER, NAN, Case, shown

TEXT = "\n\n".join(
    f"{i} the heart is {'large' if i % 2 else 'small'} in {i % 7} of {i % 5} patients" for i in range(900)
)
TASK = "text,label\n" + "".join(f"item {i} {'abc'[i % 3]},{'abc'[i % 3]}\n" for i in range(200))
# By name: the command line, and the files that it cannot do without.
COMMANDS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    name: (tuple(line.split()), frozenset(needed.split()))
    for name, line, needed in (
        ("measure", "measure w --prompt 8 --new 4", "chipwise.json"),
        ("evaluate", "evaluate w --task task.csv --no-baseline", "config.json model.safetensors tokenizer.json"),
        ("sensitivity", "sensitivity w --text text.txt", "config.json model.safetensors tokenizer.json"),
        ("train", "train w --steps 1 --data text.txt --out t", "config.json model.safetensors tokenizer.json"),
        ("shrink", "shrink w --data text.txt --latency 50% --out s", "config.json model.safetensors tokenizer.json"),
        ("estimate", "estimate w --device l4", "config.json"),
        ("explain", "explain w --device l4", "config.json"),
    )
}
WRONG: tuple[Any, ...] = (None, [], {}, "x", -1, NAN, 10**40)


@functools.cache
def winner() -> dict[str, bytes]:
    """The files of a small winner, by name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from chipwise.deploy.export.hf import save_pretrained
    from chipwise.deploy.export.onnx import random_weights
    from chipwise.model.arch.arch import uniform
    from chipwise.model.arch.io import to_data

    letters = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    arch = uniform(name="w", vocab_size=len(letters), d_model=32, depth=2, heads=2, ffn_width=48, max_tokens=128)
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.add_special_tokens(letters[:1])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    said = {
        "schema": "chipwise.winner/1",
        "arch": to_data(arch),
        "weights": "int8",
        "target": {"device": "local", "runtime": "onnxruntime", "threads": 1},
        "workload": {"prompt_tokens": 8, "new_tokens": 4, "batch": 1},
        "constraints": {"ttft_p50": "<= 3 s"},
        "promised": {"ttft_p50": [1e-3, 9e-4, 2e-3]},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(str(folder / "tokens.json"))
        made = save_pretrained(arch, random_weights(arch, seed=0), folder / "tokens.json", folder / "winner")
        (made / "chipwise.json").write_text(json.dumps(said))
        return {path.name: path.read_bytes() for path in made.iterdir()}


def weights() -> Iterator[tuple[str, bytes]]:
    """Damaged contents of model.safetensors, each with a name."""
    from safetensors.numpy import load, save

    whole = winner()["model.safetensors"]
    arrays = load(whole)
    first = next(name for name in arrays if "norm" in name)
    yield "cut off", whole[: len(whole) // 2]
    yield "a header that is longer than the file", (2**62).to_bytes(8, "little") + whole[8:]
    yield "a header that is no JSON", (16).to_bytes(8, "little") + b"x" * 16
    for value in (np.nan, np.inf):
        yield f"{value} in a weight", save({**arrays, first: np.full_like(arrays[first], value)})
    yield "a weight is missing", save({name: array for name, array in arrays.items() if name != first})
    yield "a weight too many", save({**arrays, "more": arrays[first]})
    yield "a weight of another shape", save({**arrays, first: np.ones((3, 3), np.float32)})
    yield "a weight of another type", save({**arrays, first: np.ones(arrays[first].shape, np.int64)})


def damages() -> Iterator[tuple[str, str, str | bytes | None]]:
    """File, its fault, and its content (None if the file is missing)."""
    whole = winner()
    for file in whole:
        yield file, "missing", None
        for kind, content in BROKEN.items():
            if kind not in ("large", "bomb", "twice", "tag") or file in ("config.json", "chipwise.json"):
                yield file, kind, content
    for file in ("chipwise.json", "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        data = json.loads(whole.get(file, b"{}"))
        for name in data:
            for value in WRONG:
                yield file, f"{name}={shown(value)}", json.dumps({**data, name: value})
            yield file, f"without {name}", json.dumps({key: value for key, value in data.items() if key != name})
    for kind, content in weights():
        yield "model.safetensors", kind, content


def folders() -> Iterator[Case]:
    """Every damaged file with every command."""
    for file, kind, content in damages():
        for command, (arguments, needed) in COMMANDS.items():
            files: dict[str, str | bytes] = {f"w/{name}": held for name, held in winner().items() if name != file}
            files |= {"text.txt": TEXT, "task.csv": TASK} | ({} if content is None else {f"w/{file}": content})
            fatal = file in needed and (content is None or kind in BROKEN or content in (FIFO, FOLDER))
            if command == "shrink" and not fatal:  # it would shrink, which takes its time
                continue
            yield Case(
                name=f"{command} folder {file} {kind}",
                words=(file, "w:", *kind.replace("=", " ").split()[:1]),
                arguments=arguments,
                files=files,
                rows=not fatal,
            )
