"""GGUF: names and layouts by pencil, files read back as they were written, and llama.cpp's own answer as the peer."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chipwise.api.testing.backend_suite import torch_logits
from chipwise.deploy.export import gguf as writer
from chipwise.deploy.export.gguf import export, export_if_possible, interleaved, layout, split_halves
from chipwise.deploy.export.gguf_read import GgufFile, read, read_design, read_weights
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.runtimes import RUNTIMES, missing
from chipwise.errors import MissingExtra, SpecError, StorageError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.quantize import NEAREST

pytest.importorskip("gguf", reason="gguf is not installed; it comes with: pip install 'chipwise[gguf]'")
needs_llama_cpp = pytest.mark.skipif(missing("llama.cpp") is not None, reason=f"llama.cpp: {missing('llama.cpp')}")

ARCH = uniform(vocab_size=40, d_model=64, depth=2, heads=4, kv_heads=2, ffn_width=96, max_tokens=32, name="even")
ATTENTION, FFN = Attention(heads=2, kv_heads=1, head_size=16), FeedForward(width=32)
WHOLE, ONLY_ATTENTION, ONLY_FFN = (
    Layer(attention=ATTENTION, ffn=FFN),
    Layer(attention=ATTENTION, ffn=None),
    Layer(attention=None, ffn=FFN),
)


def of(*layers: Layer, **changes) -> ArchSpec:
    return replace(ARCH, layers=layers, name="uneven", **changes)


UNEVEN = of(
    WHOLE,
    ONLY_FFN,
    Layer(attention=Attention(heads=4, kv_heads=4, head_size=16, qkv_bias=True, out_bias=True), ffn=FFN),
    Layer(attention=ATTENTION, ffn=FeedForward(width=64, bias=True)),
    replace(WHOLE, shares=0),
)


NORMED = of(*[replace(WHOLE, attention=replace(ATTENTION, qk_norm=True))] * 2)


def written(folder: Path, arch: ArchSpec, weights: str = "fp32") -> Path:
    return export(Design(arch=arch, weights=weights), random_weights(arch, seed=0), folder / "model.gguf")


def test_rows_are_interleaved_by_pencil() -> None:
    """Two heads of four rows: halves (0 1 | 2 3) and (4 5 | 6 7)."""
    rows = np.arange(8, dtype=np.float32)
    assert interleaved(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert split_halves(interleaved(rows, 2), 2).tolist() == rows.tolist()


def test_layers_that_agree_are_llama_and_others_deci(tmp_path) -> None:
    even = GgufFile.open(written(tmp_path, ARCH))
    assert even.fields["general.architecture"] == "llama"
    assert (even.field("attention.head_count"), even.field("feed_forward_length")) == (4, 96)
    uneven = GgufFile.open(written(tmp_path, UNEVEN))
    assert uneven.fields["general.architecture"] == "deci"
    assert uneven.field("attention.head_count") == [2, 0, 4, 2, 2]
    assert uneven.field("attention.head_count_kv") == [1, 0, 4, 1, 1]
    assert uneven.field("feed_forward_length") == [32, 32, 32, 64, 32]
    assert uneven.field("attention.key_length") == 16
    assert not [name for name in uneven.tensors if name.startswith("blk.1.attn")]
    assert np.array_equal(uneven.values("blk.4.ffn_up.weight"), uneven.values("blk.0.ffn_up.weight"))  # shared


def test_blocks_are_regrouped_into_layers_that_llama_cpp_has() -> None:
    blocks = layout(of(ONLY_ATTENTION, ONLY_FFN, ONLY_FFN))
    assert [(block.attention and block.attention[1], block.ffn[1]) for block in blocks] == [(0, 1), (None, 2)]


@pytest.mark.parametrize(
    ("arch", "named"),
    [
        (replace(ARCH, norm="layernorm", norm_bias=True), "norm: layernorm"),
        (of(replace(WHOLE, attention=replace(ATTENTION, rope=False)), positions="learned"), "positions: learned"),
        (of(WHOLE, replace(WHOLE, attention=replace(ATTENTION, qk_norm=True))), "qk_norm"),
        (of(replace(WHOLE, attention=replace(ATTENTION, qk_norm=True, qkv_bias=True))), "qk_norm"),
        (of(replace(WHOLE, attention=replace(ATTENTION, window=8))), "attention windows"),
        (of(replace(WHOLE, attention_conv=4)), "convolutions before blocks"),
        (of(WHOLE, replace(WHOLE, attention=replace(ATTENTION, head_size=32))), r"head sizes that differ \(16, 32\)"),
        (of(replace(WHOLE, ffn=replace(FFN, gated=False, activation="relu"))), "plain relu"),
        (of(replace(WHOLE, ffn=replace(FFN, activation="gelu"))), "gated gelu"),
        (of(WHOLE, ONLY_ATTENTION), "attention of layer 1 is not followed by a feed-forward"),
        (of(ONLY_ATTENTION, WHOLE), "attention of layer 0 is not followed by a feed-forward"),
        (of(ONLY_FFN, WHOLE), "first layer has no attention"),
    ],
)
def test_what_gguf_cannot_hold_is_refused_by_name(tmp_path, arch, named) -> None:
    with pytest.raises(Unsupported, match=named):
        written(tmp_path, arch)
    assert not list(tmp_path.iterdir())


@st.composite
def held(draw: st.DrawFn) -> Design:
    """Any design that GGUF holds."""
    layers: list[Layer] = []
    bias, normed = draw(st.booleans()), draw(st.booleans())
    for i in range(draw(st.integers(1, 4))):
        if i and (normed or draw(st.booleans())):
            layers.append(replace(layers[0], shares=0))
            continue
        kv_heads = draw(st.sampled_from((1, 2)))
        heads = kv_heads * draw(st.sampled_from((1, 2)))
        attention = Attention(heads=heads, kv_heads=kv_heads, head_size=32, qkv_bias=bias, out_bias=bias)
        attention = replace(attention, qk_norm=True, qkv_bias=False) if normed else attention
        ffn = FeedForward(width=draw(st.sampled_from((32, 64))), bias=bias)
        layers.append(Layer(attention=attention if i == 0 or draw(st.booleans()) else None, ffn=ffn))
    arch = replace(ARCH.with_tied(draw(st.booleans())), layers=tuple(layers))
    formats = st.sampled_from(tuple(writer.TYPES))
    own = [draw(formats)] * len(layers) if draw(st.booleans()) else [draw(formats) for _ in layers]
    each = [own[i if layer.shares is None else layer.shares] for i, layer in enumerate(layers)]
    return Design(arch=arch, weights=formats_word(each, draw(formats)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(held())
def test_files_are_read_back_as_they_were_written(design: Design) -> None:
    """FP32 to the bit; others within half a step of their format. The token table has the head's."""
    weights = random_weights(design.arch, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        found, back = read(export(design, weights, Path(folder) / "model.gguf"))
    assert found == design
    assert back.keys() == weights.keys()
    for name, value in weights.items():
        stored, largest = design.format_of(name), np.abs(value).max()
        stored = design.formats.head if name == "embedding.weight" else stored
        step = {"fp16": 2**-11, "bf16": 2**-8, "int8": 1 / 127, "int4": 1 / 8}.get(stored, 0.0)
        assert np.abs(back[name] - value).max() <= 1.01 * step * largest


def test_quantised_matrices_take_the_bytes_of_their_blocks(tmp_path) -> None:
    """32 values: 32 bytes and a scale of 2 in Q8_0, 16 bytes and the scale in Q4_0. A tied head is the token table."""
    for weights, block_bytes in (("int8", 34), ("int4", 18)):
        file = GgufFile.open(written(tmp_path, ARCH, weights))
        assert file.tensors["blk.0.ffn_down.weight"].n_bytes == 96 * 64 // 32 * block_bytes
        assert file.tensors["token_embd.weight"].n_bytes == 40 * 64 // 32 * block_bytes
        assert "output.weight" not in file.tensors
    file = GgufFile.open(written(tmp_path, ARCH, "int4 head:int8"))
    assert file.tensors["token_embd.weight"].n_bytes == 40 * 64 // 32 * 34
    file = GgufFile.open(written(tmp_path, ARCH.with_tied(False), "int4 head:fp16"))
    kinds = [file.tensors[name].tensor_type.name for name in ("token_embd.weight", "output.weight")]
    assert kinds == ["F16", "F16"]


def test_blocks_of_four_bits_by_pencil() -> None:
    """Values -8 … 7, twice: the scale is 1, byte i has value i in its low nibble and value i + 16 in its high one."""
    row = np.tile(np.arange(-8, 8, dtype=np.float32), 2)[None]
    found = q4_0(row)
    assert found[0, :2].view(np.float16).tolist() == [1.0]
    assert found[0, 2:].tolist() == [i * 17 for i in range(16)]


def test_eight_bits_are_those_of_the_gguf_package() -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    rows = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    rows[3, 32:64], rows[5] = 0.0, np.linspace(-1.27, 1.27, 96)  # a block of zeros, and halves to round
    ours = writer.file_blocks(NEAREST.pack("", rows, "q8_0"))
    assert np.array_equal(ours, quantize(rows, GGMLQuantizationType.Q8_0))


def q4_0(rows: np.ndarray) -> np.ndarray:
    return writer.file_blocks(NEAREST.pack("", rows, "int4"))


def test_four_bits_lose_no_more_than_the_rounding_of_the_gguf_package() -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    rows = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    kind = GGMLQuantizationType.Q4_0
    ours, theirs = (np.square(dequantize(b, kind) - rows).mean() for b in (q4_0(rows), quantize(rows, kind)))
    assert ours < theirs


def test_rows_that_do_not_fill_blocks_are_refused_with_the_tensor(tmp_path) -> None:
    arch = replace(ARCH, layers=(replace(WHOLE, ffn=FeedForward(width=40)),))
    with pytest.raises(Unsupported, match=r"blk\.0\.ffn_down\.weight has rows of 40"):
        written(tmp_path, arch, "int8")
    assert not list(tmp_path.iterdir())


def test_a_file_of_others_says_what_it_is_by_its_fields(tmp_path, monkeypatch) -> None:
    """Layers that share weights are then seen as what the file holds: layers of their own."""
    monkeypatch.setattr(writer, "METADATA", "somebody")
    for arch, weights in ((ARCH, "int8"), (UNEVEN, "fp32")):
        found = read_design(written(tmp_path, arch, weights))
        own = tuple(replace(layer, shares=None) for layer in arch.layers)
        assert found.arch == replace(arch, layers=own)
        assert found.weights == weights
    mixed = "int4/int8/int8/fp32/int4 head:int8"
    assert read_design(written(tmp_path, UNEVEN, mixed)).weights == mixed


def test_another_mixture_in_a_file_of_others_is_refused_with_the_layer(tmp_path, monkeypatch) -> None:
    """An attention of one layer and the feed-forward of the next are one GGUF layer, here of two formats."""
    monkeypatch.setattr(writer, "METADATA", "somebody")
    path = written(tmp_path, of(ONLY_ATTENTION, ONLY_FFN, WHOLE), "int4/int8/int8 head:int8")
    with pytest.raises(Unsupported, match="matrices of layer 0 are stored as Q4_0, Q8_0"):
        read_design(path)


def test_broken_files_and_missing_ones(tmp_path) -> None:
    path = written(tmp_path, ARCH)
    for content in (b"", b"GGUF", b"\x00" * 64, path.read_bytes()[:100]):
        (tmp_path / "broken").write_bytes(content)
        with pytest.raises(SpecError, match="broken"):
            read_design(tmp_path / "broken")
    with pytest.raises(SpecError, match="no such file"):
        read_design(tmp_path / "missing.gguf")


def test_wrong_weights_leave_no_file(tmp_path) -> None:
    weights = random_weights(ARCH, seed=0)
    weights["norm.weight"] = np.ones(3, np.float32)
    with pytest.raises(SpecError, match=r"norm\.weight"):
        export(Design(arch=ARCH), weights, tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        written(tmp_path / "file", ARCH)


def test_without_the_package_its_extra_is_named(tmp_path, monkeypatch) -> None:
    path = written(tmp_path, ARCH)
    monkeypatch.setitem(sys.modules, "gguf", None)
    for attempt in (lambda: written(tmp_path, ARCH), lambda: read_design(path)):
        with pytest.raises(MissingExtra, match=r"chipwise\[gguf\]"):
            attempt()


def test_where_gguf_cannot_hold_the_winner_no_old_file_stays(tmp_path) -> None:
    path, weights = tmp_path / "model.gguf", random_weights(ARCH, seed=0)
    assert export_if_possible(Design(arch=ARCH), weights, path) == path
    assert export_if_possible(Design(arch=replace(ARCH, norm="layernorm")), weights, path) is None
    assert not path.exists()


def tokenizer_file(folder: Path) -> Path:
    from chipwise.training.data.tokenizer import train_tokenizer

    path = folder / "tokenizer.json"
    train_tokenizer(["a fever is a fever", "pain in the chest, 3 days", "naïve café"] * 4, 280).save(str(path))
    return path


@needs_llama_cpp
def test_llama_cpp_cuts_text_into_the_same_tokens(tmp_path) -> None:
    import llama_cpp
    from tokenizers import Tokenizer

    arch = ARCH.of_vocabulary(300)  # twenty more than the tokenizer has
    path = tokenizer_file(tmp_path)
    model = export(Design(arch=arch), random_weights(arch, seed=0), tmp_path / "model.gguf", tokenizer=path)
    theirs = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)
    ours = Tokenizer.from_file(str(path))
    for text in ("a fever, 39.5 degrees", "  naïve\n\ncafé  ", "pain's in the chest!", "日本 🙂"):
        tokens = theirs.tokenize(text.encode(), add_bos=False)
        assert tokens == ours.encode(text).ids
        assert theirs.detokenize(tokens).decode() == text
    assert theirs.token_eos() == ours.token_to_id("<|endoftext|>")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path) -> None:
    with pytest.raises(SpecError, match="280 tokens; the model has 40"):
        export(Design(arch=ARCH), random_weights(ARCH, seed=0), tmp_path / "m.gguf", tokenizer=tokenizer_file(tmp_path))


@needs_llama_cpp
@pytest.mark.parametrize(
    "arch",
    [
        ARCH,
        UNEVEN,
        of(ONLY_ATTENTION, ONLY_FFN, ONLY_FFN, WHOLE),
        replace(UNEVEN, rope_theta=5e5, norm_eps=1e-3),
        NORMED,
    ],
    ids=["even", "uneven", "regrouped", "other constants", "normed queries and keys"],
)
def test_llama_cpp_computes_what_torch_computes(tmp_path, arch) -> None:
    """Largest difference of any logit below 1e-4, with a cache in FP32."""
    weights = drawn_weights(arch)
    path = export(Design(arch=arch), weights, tmp_path / "model.gguf")
    assert_llama_cpp_agrees(path, arch, weights)


def drawn_weights(arch: ArchSpec) -> dict[str, np.ndarray]:
    """Random weights whose norms are random, too, so that a norm in the wrong place shows."""
    r = np.random.default_rng(1)
    made = random_weights(arch, seed=0)
    return {
        name: r.uniform(0.5, 1.5, value.shape).astype(np.float32) if "norm" in name else value
        for name, value in made.items()
    }


def assert_llama_cpp_agrees(path: Path, arch: ArchSpec, weights: dict[str, np.ndarray]) -> None:
    session = RUNTIMES.load("llama.cpp")().open(path, capacity=24, batch=1, threads=1, options={})
    tokens = np.random.default_rng(0).integers(0, 40, (1, 24))
    wanted = torch_logits(arch, weights, tokens)[0]
    found = [session.prefill(tokens[:, :8])[0].copy()]
    found += [session.decode(tokens[:, i : i + 1])[0].copy() for i in range(8, 24)]
    assert np.abs(np.stack(found) - wanted[7:]).max() <= 1e-4


ARCHS = {
    "even": ARCH,
    "uneven": UNEVEN,
    "regrouped": of(ONLY_ATTENTION, ONLY_FFN, ONLY_FFN, WHOLE),
    "other constants": replace(UNEVEN, rope_theta=5e5, norm_eps=1e-3),
    "head of its own": ARCH.with_tied(False),
    "normed queries and keys": NORMED,
}


@pytest.mark.parametrize("cache", ["f32", "f16"])
@pytest.mark.parametrize("name", ARCHS)
def test_logits_of_llama_cpp_are_those_of_torch(tmp_path, name, cache) -> None:
    """Within 1e-5 of the largest logit with a cache in FP32, and 1e-2 in FP16; both less their log-sum-exp."""
    arch = ARCHS[name].of_vocabulary(300)
    weights = drawn_weights(arch)
    path = export(Design(arch=arch), weights, tmp_path / "model.gguf", tokenizer=tokenizer_file(tmp_path))
    assert_log_probabilities(path, arch, weights, cache=cache, tolerance={"f32": 1e-5, "f16": 1e-2}[cache])


def assert_log_probabilities(
    path: Path, arch: ArchSpec, weights: dict[str, np.ndarray], *, cache: str, tolerance: float
) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed; it comes with: pip install 'chipwise[all]'")
    from chipwise.deploy.runtimes.llama_server import LlamaServer

    server = LlamaServer(path, cache=cache, context=64)
    tokens = np.random.default_rng(0).integers(0, 280, (1, 24))
    wanted = torch_logits(arch, weights, tokens)[0]
    found = np.stack([server.log_probabilities(tokens[0, : i + 1].tolist(), 300) for i in range(24)])
    shifted = wanted - np.log(np.exp(wanted).sum(-1, keepdims=True))
    assert np.abs(found - shifted).max() <= tolerance * np.abs(wanted).max()


def test_a_file_of_qwen2_is_read_as_llama_cpp_computes_it(tmp_path) -> None:
    """Qwen2 rotates the two halves of a head, so its rows are stored as they are; llama.cpp's logits are the peer."""
    from gguf import GGUFWriter

    attention = Attention(heads=4, kv_heads=2, head_size=16, qkv_bias=True)
    arch = of(*[replace(WHOLE, attention=attention)] * 2).of_vocabulary(300)
    weights = drawn_weights(arch)
    of_llama = GgufFile.open(
        export(Design(arch=arch), weights, tmp_path / "llama.gguf", tokenizer=tokenizer_file(tmp_path))
    )
    file = GGUFWriter(tmp_path / "qwen2.gguf", "qwen2")
    for key, value in of_llama.fields.items():
        if key.startswith(("llama.", "tokenizer.")):
            kind, *inner = of_llama.kinds[key]
            file.add_key_value(key.replace("llama.", "qwen2."), value, kind, inner[-1] if inner else None)
    for name in of_llama.tensors:
        value, heads = of_llama.values(name), {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2], 0)
        file.add_tensor(name, split_halves(value, heads) if heads else value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    found, back = read_weights(tmp_path / "qwen2.gguf")
    assert found.layers == arch.layers
    assert all(np.array_equal(back[name], value) for name, value in weights.items())
    assert_log_probabilities(tmp_path / "qwen2.gguf", arch, weights, cache="f32", tolerance=1e-5)
