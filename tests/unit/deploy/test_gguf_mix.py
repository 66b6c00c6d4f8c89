"""Mixes of formats: llama.cpp's stock rules by hand, and a file whose matrices read back as they were packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chipwise.deploy.runtimes.ggml import TYPES, Bytes, ggml, library_path
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.weights import weight_shapes

pytest.importorskip("gguf")
if library_path() is None:
    pytest.skip("needs xllamacpp or llama-cpp-python", allow_module_level=True)

from chipwise.deploy.export import gguf
from chipwise.deploy.export.gguf_mix import matrices, mix_bytes, stock_mix, write_mix
from chipwise.deploy.export.gguf_read import GgufFile


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    layer = Layer(attention=Attention(heads=6, kv_heads=2, head_size=32), ffn=FeedForward(width=512))
    arch = ArchSpec(
        name="tiny",
        stem=Tokens(vocab_size=64),
        head=LmHead(tied=False),
        d_model=256,
        layers=(layer,) * 8,
        max_tokens=64,
    )
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32) / 16 for name, shape in weight_shapes(arch).items()
    }
    return GgufFile.open(gguf.export(Design(arch=arch, weights="fp16"), weights, tmp_path / "tiny.gguf"))


def test_q4_k_m_by_hand(file: GgufFile) -> None:
    mix = stock_mix("Q4_K_M", file)
    assert mix["output.weight"] == "Q6_K"
    assert mix["token_embd.weight"] == mix["blk.3.ffn_up.weight"] == "Q4_K"
    # of 8 layers the first and the last eighth have more bits, and every third of the others: 0, 3, 6, 7
    assert [i for i in range(8) if mix[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [0, 3, 6, 7]
    # 6 heads of 32 values: rows of 192, which K formats exclude
    assert mix["blk.0.attn_output.weight"] == "Q5_0"


def test_a_written_mix_reads_back_as_packed(file: GgufFile, tmp_path: Path) -> None:
    mix = {**stock_mix("Q3_K_M", file), "blk.1.attn_q.weight": "IQ4_XS"}
    packed = {name: ggml().pack(file.values(name), TYPES[kind]) for name, kind in mix.items()}
    made = GgufFile.open(write_mix(file, mix, tmp_path / "mix.gguf", lambda name, kind: packed[name], name="mix"))
    assert set(made.tensors) == set(file.tensors)
    assert matrices(made) == matrices(file)
    assert made.fields["llama.feed_forward_length"] == 512
    for name, kind in mix.items():
        assert made.tensors[name].tensor_type.name == kind
        own = ggml().unpack(packed[name], TYPES[kind], matrices(file)[name][1])
        np.testing.assert_array_equal(made.values(name), own)
    np.testing.assert_array_equal(made.values("output_norm.weight"), file.values("output_norm.weight"))
    assert 0 < made.path.stat().st_size - mix_bytes(file, mix) < 32_000  # the header


def packer(file: GgufFile, made: list[str], most: int = 1000) -> Callable[[str, str], Bytes]:
    """Notes which matrices it packs, and is stopped after ``most``."""

    def pack(name: str, kind: str) -> Bytes:
        if len(made) == most:
            raise KeyboardInterrupt
        made.append(name)
        return ggml().pack(file.values(name), TYPES[kind])

    return pack


@pytest.mark.parametrize("torn", [0, 1, 31, 10_000])
def test_a_stopped_mix_goes_on_after_its_last_whole_tensor(file: GgufFile, tmp_path: Path, torn: int) -> None:
    """The bytes are those of a mix that was written at once, also where a kill tore a tensor."""
    mix, first, second = stock_mix("Q4_K_M", file), list[str](), list[str]()
    with pytest.raises(KeyboardInterrupt):
        write_mix(file, mix, tmp_path / "a.gguf", packer(file, first, most=20), name="mix")
    part = tmp_path / ".a.gguf.part"
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.gguf", part.name}
    os.truncate(part, part.stat().st_size - torn)
    write_mix(file, mix, tmp_path / "a.gguf", packer(file, second), name="mix")
    assert set(first + second) == set(mix)
    assert len(first + second) - len(mix) <= (1 if torn else 0)
    write_mix(file, mix, tmp_path / "b.gguf", packer(file, []), name="mix")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert not part.exists()


def test_a_part_of_another_mix_is_not_used(file: GgufFile, tmp_path: Path) -> None:
    mix = stock_mix("Q4_K_M", file)
    write_mix(file, stock_mix("Q6_K", file), tmp_path / ".a.gguf.part", packer(file, []), name="another")
    made = GgufFile.open(write_mix(file, mix, tmp_path / "a.gguf", packer(file, []), name="mix"))
    assert {name: made.tensors[name].tensor_type.name for name in mix} == mix
