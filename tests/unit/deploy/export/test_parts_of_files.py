"""Formats of tensors in GGUF files, supported models, and calls of llama.cpp, checked by hand."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chipwise.deploy.export.layer_groups import groups_of, groups_of_gguf, ranges
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.sources import Source, check_held, holding, write_gguf, write_hf, write_onnx
from chipwise.deploy.runtimes import llama_server
from chipwise.errors import MeasurementError, MissingExtra, SpecError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.read import resolve

ARCH = uniform(vocab_size=64, d_model=32, depth=3, heads=2, kv_heads=1, head_size=32, ffn_width=64, max_tokens=16)
ATTENTION = 32 * 64 * 2 + 2 * 32 * 32  # queries and output of two heads, a key and a value
FFN = 3 * 32 * 64


def told(groups: Any) -> dict[str, tuple[str, str, int, int]]:
    return {group.part: (group.layers, group.format, group.parameters, group.bytes) for group in groups}


def test_parts_of_a_design_by_hand() -> None:
    """A tied head in FP32 is the table; in 8 bits it is a copy, with a scale of 4 bytes a row."""
    vectors = ("0-2", "fp32", 7 * 32, 4 * 7 * 32)
    assert told(groups_of(Design(arch=ARCH))) == {
        "token table and head": ("", "fp32", 64 * 32, 4 * 64 * 32),
        "norms and biases": vectors,
        "attention": ("0-2", "fp32", 3 * ATTENTION, 4 * 3 * ATTENTION),
        "feed-forward": ("0-2", "fp32", 3 * FFN, 4 * 3 * FFN),
    }
    # one scale of an output: 64 + 32 + 32 of queries, keys and values and 32; 64 + 64 and 32 of the feed-forward
    assert told(groups_of(Design(arch=ARCH, weights="int8"))) == {
        "token table": ("", "fp32", 64 * 32, 4 * 64 * 32),
        "norms and biases": vectors,
        "attention": ("0-2", "int8", 3 * ATTENTION, 3 * (ATTENTION + 4 * (64 + 32 + 32 + 32))),
        "feed-forward": ("0-2", "int8", 3 * FFN, 3 * (FFN + 4 * (64 + 64 + 32))),
        "head": ("", "int8", 64 * 32, 64 * 32 + 4 * 64),
    }
    apart = told(groups_of(Design(arch=ARCH.with_tied(False))))
    assert apart["token table"] == apart["head"] == ("", "fp32", 64 * 32, 4 * 64 * 32)
    first = replace(ARCH.layers[0], attention=replace(ARCH.layers[0].attention, qkv_bias=True), attention_conv=4)
    wide = told(groups_of(Design(arch=replace(ARCH, layers=(first, *ARCH.layers[1:])))))
    assert wide["norms and biases"][2] == 7 * 32 + 64 + 32 + 32
    assert wide["convolutions"][0] == "0"
    assert wide["convolutions"][2] in (4 * 32, 5 * 32)


@pytest.mark.parametrize(
    ("numbers", "said"), [([], ""), ([3], "3"), ([1, 0], "0-1"), ([0, 1, 2, 5], "0-2, 5"), ([0, 2, 4, 5], "0, 2, 4-5")]
)
def test_numbers_in_short(numbers: list[int], said: str) -> None:
    assert ranges(numbers) == said


def test_parts_of_a_gguf_file_by_hand(tmp_path: Path) -> None:
    """Q8_0 takes 34 bytes for 32 values."""
    pytest.importorskip("gguf", reason="GGUF files need the package gguf")
    source = Source(path=tmp_path, arch=ARCH, weights=random_weights(ARCH, seed=0), tokenizer=None)
    names, notes = write_gguf(source, Design(arch=ARCH, weights="int8"), tmp_path)
    assert names == ["model.gguf"]
    assert notes == [
        f"no tokenizer in the file, so llama.cpp takes no text: {tmp_path}: it has no tokenizer.json",
    ]
    found = told(groups_of_gguf(tmp_path / "model.gguf"))
    assert found == {
        "token table and head": ("", "Q8_0", 64 * 32, 64 * 34),
        "norms and biases": ("0-2", "F32", 7 * 32, 4 * 7 * 32),
        "attention": ("0-2", "Q8_0", 3 * ATTENTION, 3 * ATTENTION * 34 // 32),
        "feed-forward": ("0-2", "Q8_0", 3 * FFN, 3 * FFN * 34 // 32),
    }
    apart = ARCH.with_tied(False)
    source = replace(source, arch=apart, weights=random_weights(apart, seed=0))
    (tmp_path / "tokenizer.model").touch()
    assert "has only tokenizer.model" in write_gguf(source, Design(arch=apart), tmp_path)[1][0]
    found = told(groups_of_gguf(tmp_path / "model.gguf"))
    assert found["token table"] == found["head"] == ("", "F32", 64 * 32, 4 * 64 * 32)
    again = Source.read(tmp_path / "model.gguf")
    assert (again.tokenizer, again.arch.layers) == (None, apart.layers)


def test_what_can_hold_a_model() -> None:
    others = ["compressed-tensors", "transformers.js"]
    assert holding(ARCH) == ["gguf", "hf", "onnx", "openvino", "executorch", "litert", "coreml", *others]
    plain = replace(ARCH, layers=(replace(ARCH.layers[0], ffn=FeedForward(width=64, gated=False)),) * 3)
    assert holding(plain) == ["hf", "onnx", "openvino", "executorch", "litert", "coreml"]
    check_held(plain, "onnx")
    with pytest.raises(Unsupported, match=r"feed-forward of plain silu.*; use --to hf or --to onnx"):
        check_held(plain, "gguf")
    assert holding(resolve("bert-base-uncased")) == ["hf", "onnx"]


def test_a_folder_is_read_and_written_again_with_what_lies_beside(tmp_path: Path) -> None:
    given = Source(path=tmp_path / "none", arch=ARCH, weights=random_weights(ARCH, seed=0), tokenizer=None)
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    for folder in (first, second, third):
        folder.mkdir()
    names, notes = write_hf(given, Design(arch=ARCH), first)
    assert notes == []
    assert names == sorted(path.name for path in first.iterdir())
    config = json.loads((first / "config.json").read_text())
    (first / "vocab.json").write_text("{}")
    source = Source.read(first)
    (first / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no"}, "other": 1}))
    assert source.tokenizer is None
    assert replace(source.arch, name=ARCH.name) == ARCH
    write_hf(source, Design(arch=source.arch), second)
    assert (second / "vocab.json").read_text() == "{}"
    again = json.loads((second / "config.json").read_text())
    assert (again["id2label"], "other" in again) == ({"0": "no"}, False)
    assert write_onnx(source, Design(arch=source.arch), third)[0] == ["model.onnx", "vocab.json"]
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(SpecError, match=r"give a run, a Hugging Face folder with weights or a \.gguf file"):
            Source.read(wrong)


class Server:
    """Tokens are letters, any token is followed by the next number."""

    made: dict[str, Any]

    def __init__(self, path: str, *, cache: str, context: int) -> None:
        Server.made = {"path": path, "cache": cache, "context": context}

    def tokens(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def text(self, prompt: list[int], new: int) -> str:
        return f"{prompt} and {new}"

    def log_probabilities(self, tokens: list[int], size: int) -> Any:
        return SimpleNamespace(tolist=lambda: [len(tokens), size])


ASKED = {
    "path": "x",
    "text": "abcdefghijkl",
    "most_tokens": 9,
    "positions": 3,
    "new": 2,
    "begin": 4,
    "vocab_size": 7,
    "cache": "f32",
}


def test_what_llama_cpp_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tokens, the last three places, each with all before it; the first four are continued by two."""
    monkeypatch.setattr(llama_server, "LlamaServer", Server)
    reply = llama_server.answer(ASKED)
    assert reply == {
        "tokens": [ord(letter) for letter in "abcdefghi"],
        "places": [6, 7, 8],
        "log_probabilities": [[7, 7], [8, 7], [9, 7]],
        "text": "[97, 98, 99, 100] and 2",
    }
    assert Server.made == {"path": "x", "cache": "f32", "context": 64}
    assert llama_server.answer(ASKED | {"most_tokens": 200, "new": 198})["text"] == "[97, 98] and 198"
    assert Server.made["context"] == 398
    assert llama_server.answer(ASKED | {"most_tokens": 3, "new": 5})["text"] == "[97] and 5"


def test_llama_cpp_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def answer_of(module: str, request: dict[str, Any], *, timeout_s: float, name: str) -> dict[str, Any]:
        sent.append((module, request, timeout_s, name))
        return {"text": "yes"}

    monkeypatch.setattr(llama_server, "answer_of", answer_of)
    monkeypatch.setattr(llama_server, "available", lambda: True)
    options = {name: value for name, value in ASKED.items() if name not in ("path", "cache")}
    assert llama_server.ask(Path("x"), **options) == {"text": "yes"}
    assert sent == [("chipwise.deploy.runtimes.llama_server", ASKED, 600.0, "llama.cpp")]
    llama_server.ask("x", **options, cache="f16")
    assert sent[1][1]["cache"] == "f16"
    monkeypatch.setattr(llama_server, "available", lambda: False)
    with pytest.raises(MissingExtra, match="xllamacpp"):
        llama_server.ask("x", **options)
    assert len(sent) == 2


def test_the_process_answers_with_a_line_or_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(model: Any) -> dict[str, Any]:
        monkeypatch.setattr(llama_server, "answer", model)
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(ASKED)))
        read, write = os.pipe()
        kept = os.dup(1)
        try:
            os.dup2(write, 1)
            os.close(write)
            assert llama_server.main() == 0
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        with os.fdopen(read) as stream:
            return dict(json.loads(stream.read()))

    assert said(lambda request: {"places": request["positions"]}) == {"places": 3}

    def broken(request: dict[str, Any]) -> dict[str, Any]:
        raise MeasurementError("cannot load")

    assert said(broken) == {"error": "cannot load"}


def test_layers_that_share_weights_are_stored_once_and_absent_blocks_not_at_all() -> None:
    layers = (
        ARCH.layers[0],
        Layer(attention=Attention(heads=2, kv_heads=1, head_size=32), ffn=None),
        replace(ARCH.layers[0], shares=0),
    )
    found = told(groups_of(Design(arch=replace(ARCH, layers=layers))))
    assert found["attention"][:3] == ("0-1", "fp32", 2 * ATTENTION)
    assert found["feed-forward"][:3] == ("0", "fp32", FFN)
