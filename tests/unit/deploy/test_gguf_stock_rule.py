"""Stock mixes are those of files that llama.cpp's own quantiser writes, tensor by tensor."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")

from chipwise.deploy.export.gguf_mix import STOCK, matrices, stock_mix  # noqa: E402
from chipwise.deploy.export.gguf_read import GgufFile  # noqa: E402

CODES = {  # llama_ftype in llama.h
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14,
    "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ3_M": 27, "IQ4_XS": 30,
}  # fmt: skip


@llama_cpp.llama_log_callback
def unheard(level: int, text: bytes, data: object) -> None:
    """Drops the library's log."""


def tiny(path: Path, *, layers: int, heads: int, kv_heads: int, width: int, ffn: int, tied: bool) -> GgufFile:
    """A model of random weights; two rows of each matrix will do, since types follow from widths."""
    writer, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(2)
    writer.add_tokenizer_model("none")
    shapes = {"token_embd": (2, width), "output_norm": (width,)} | ({} if tied else {"output": (2, width)})
    for i in range(layers):
        shapes |= {f"blk.{i}.{norm}": (width,) for norm in ("attn_norm", "ffn_norm")}
        names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
        shapes |= {f"blk.{i}.{name}": (2, width) for name in names} | {f"blk.{i}.ffn_down": (2, ffn)}
    for name, shape in shapes.items():
        kind = np.float16 if len(shape) == 2 else np.float32
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile.open(path)


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": 32, "heads": 8, "kv_heads": 1, "width": 256, "ffn": 256, "tied": True},
        {"layers": 6, "heads": 4, "kv_heads": 4, "width": 256, "ffn": 320, "tied": False},
        {"layers": 4, "heads": 3, "kv_heads": 1, "width": 192, "ffn": 512, "tied": False},
        {"layers": 80, "heads": 4, "kv_heads": 2, "width": 32, "ffn": 32, "tied": True},
    ],
)
def test_every_matrix_has_the_type_that_llama_cpp_gives_it(tmp_path: Path, shape: dict) -> None:
    llama_cpp.llama_log_set(unheard, ctypes.c_void_p(0))
    file = tiny(tmp_path / "tiny.gguf", **shape)
    ones = {name: (ctypes.c_float * width)(*[1.0] * width) for name, (_, width) in matrices(file).items()}
    importance = (llama_cpp.llama_cpp.llama_model_imatrix_data * (len(ones) + 1))()  # ends with an empty entry
    for item, (name, values) in zip(importance, ones.items(), strict=False):
        item.name, item.size = name.encode(), len(values)
        item.data = ctypes.cast(values, ctypes.POINTER(ctypes.c_float))
    for name in STOCK:
        how = llama_cpp.llama_model_quantize_default_params()
        how.nthread, how.ftype, how.imatrix = 1, CODES[name], importance
        made = tmp_path / "made.gguf"
        assert llama_cpp.llama_model_quantize(str(file.path).encode(), str(made).encode(), how) == 0
        theirs = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(made).tensors}
        assert {each: theirs[each] for each in matrices(file)} == stock_mix(name, file), name
