"""Writes a GGUF file again with a new format for each matrix, tensor by tensor, holding one matrix in memory at a time.

Metadata and tokenizer are copied from the source. A mix is a format for each matrix. llama.cpp's predefined mixes,
such as ``Q4_K_M``, are called stock mixes; they are computed by the rule that llama.cpp's own quantiser follows if it
has an importance matrix.

References:
    ``llama_tensor_get_type`` and ``tensor_type_fallback`` in llama.cpp's ``src/llama-quant.cpp``. ``tests/unit/deploy``
    checks that the types equal those in files that ``llama_model_quantize`` (llama-cpp-python 0.3.36) writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.gguf import write_file
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import TYPES, Bytes
from chipwise.errors import UnknownName, Unsupported

Mix = Mapping[str, str]  # format of each matrix, by the tensor's name
STOCK: Mapping[str, str] = {
    "Q8_0": "Q8_0",
    "Q6_K": "Q6_K",
    "Q5_K_M": "Q5_K",
    "Q5_K_S": "Q5_K",
    "Q4_K_M": "Q4_K",
    "Q4_K_S": "Q4_K",
    "Q4_1": "Q4_1",
    "Q4_0": "Q4_0",
    "IQ4_NL": "IQ4_NL",
    "IQ4_XS": "IQ4_XS",
    "Q3_K_L": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_S": "Q3_K",
    "IQ3_M": "IQ3_S",
    "Q2_K": "Q2_K",
}
"""Stock mixes (llama.cpp's predefined mixes), and the format of most of their matrices."""
_FALLBACKS = {  # for widths that are not a multiple of 256
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
_LAYERS_OF_70B = 80  # by this number llama.cpp recognises a 70 B model, whose value matrices are small


def matrices(file: GgufFile) -> dict[str, tuple[int, int]]:
    """Returns rows and width of every matrix of a file, by name; a mix gives each of these tensors a format."""
    return {
        name: (int(tensor.shape[1]), int(tensor.shape[0]))
        for name, tensor in file.tensors.items()
        if len(tensor.shape) == 2 and name.endswith(".weight")
    }


def stock_mix(name: str, file: GgufFile) -> dict[str, str]:
    """The format of each matrix in llama.cpp's predefined mix ``name``, as chosen with an importance matrix.

    Raises:
        UnknownName: There is no such mix.
    """
    if name not in STOCK:
        raise UnknownName("stock mix", name, STOCK)
    held = matrices(file)
    head = "output.weight" if "output.weight" in held else "token_embd.weight"
    counts = [int(count) for count in np.ravel(file.field("attention.head_count"))]
    kv_counts = [int(count) for count in np.ravel(file.field("attention.head_count_kv", counts))]
    groups = max(counts) // max(1, max(kv_counts))
    layers = int(file.field("block_count"))
    with_values = sorted(int(found[1]) for each in held if (found := re.match(r"blk\.(\d+)\.attn_v\.", each)))
    made = {}
    for each, (_, width) in held.items():
        if each == head:
            kind = "Q8_0" if name == "Q8_0" or width % 256 else "Q6_K"
        else:
            found = re.match(r"blk\.(\d+)\.(\w+)\.weight", each)
            layer, part = (int(found[1]), found[2]) if found else (0, "")
            order, total = (with_values.index(layer), len(with_values)) if part == "attn_v" else (layer, layers)
            kind = _stock_type(name, part, order, total, groups)
            if part == "attn_v" and layers == _LAYERS_OF_70B and groups > 1 and kind in ("Q3_K", "Q4_K"):
                kind = "Q5_K"
        made[each] = fallback(kind, width)
    return made


def fallback(kind: str, width: int) -> str:
    """Returns ``kind``, or the format that llama.cpp uses instead if ``kind`` cannot store rows of ``width`` values."""
    if not TYPES[kind].fits(width):
        kind = _FALLBACKS.get(kind, "IQ4_NL")
    return kind if TYPES[kind].fits(width) else "F16"


def _more_bits(layer: int, layers: int) -> bool:
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _stock_type(name: str, part: str, layer: int, layers: int, groups: int) -> str:
    """llama.cpp's choice for one matrix; ``groups`` is query heads per KV head."""
    usual, more, first = STOCK[name], _more_bits(layer, layers), layer < layers // 8
    if part == "attn_v":
        many = groups >= 4
        chosen = {
            "Q2_K": "Q4_K" if many else "Q3_K",
            "IQ3_M": "Q4_K",
            "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",
            "Q3_K_L": "Q5_K",
            "IQ4_NL": "Q5_K" if many else usual,
            "IQ4_XS": "Q5_K" if many else usual,
            "Q4_K_M": "Q6_K" if more else usual,
            "Q5_K_M": "Q6_K" if more else usual,
            "Q4_K_S": "Q5_K" if layer < 4 else usual,
        }
    elif part == "ffn_down":
        chosen = {
            "Q2_K": "Q3_K",
            "IQ3_M": "Q4_K" if first else usual,
            "Q3_K_M": "Q5_K" if layer < layers // 16 else "Q4_K",
            "Q3_K_L": "Q5_K",
            "Q4_K_M": "Q6_K" if more else usual,
            "Q5_K_M": "Q6_K" if more else usual,
            "Q4_K_S": "Q5_K" if first else usual,
            "Q4_0": "Q4_1" if first else usual,
        }
    elif part == "attn_output":
        chosen = {"Q2_K": "Q3_K", "IQ3_M": "Q4_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
    else:
        chosen = {}
    return chosen.get(name, usual)


def mix_bytes(file: GgufFile, mix: Mix) -> int:
    """Bytes of a file's tensors if its matrices have the formats of ``mix``; the small header is not counted."""
    held = matrices(file)
    rest = sum(int(tensor.n_bytes) for name, tensor in file.tensors.items() if name not in held)
    return rest + sum(TYPES[kind].matrix_bytes(*held[name]) for name, kind in mix.items())


def write_mix(
    file: GgufFile,
    mix: Mix,
    path: Path,
    pack: Callable[[str, str], Bytes],
    *,
    name: str,
    on_tensor: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Writes ``file`` to ``path`` atomically, with each matrix in its format in ``mix``; resumes a stopped call.

    Args:
        file: The source; its other tensors and its metadata are copied.
        mix: Format of each matrix.
        path: The file to write.
        pack: Function that returns a matrix in a format, as bytes (rows, row bytes).
        name: Name of the mix, stored in the metadata.
        on_tensor: Called with the number of written tensors and the total number.

    Raises:
        Unsupported: The width of a matrix is not a multiple of its format's block.
        StorageError: The disk is full or refuses the file.
    """
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    held = matrices(file)
    for each, kind in mix.items():
        if not TYPES[kind].fits(held[each][1]):
            raise Unsupported(f"{each} has rows of {held[each][1]} values; {kind} stores blocks of {TYPES[kind].block}")
    writer = GGUFWriter(None, str(file.fields["general.architecture"]))
    for key, value in file.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kinds = file.kinds[key]
        inner = kinds[-1] if kinds[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kinds[0], inner)
    writer.data_alignment = int(file.fields.get("general.alignment", writer.data_alignment))
    writer.add_string("general.quantized_by", f"chipwise: {name}")
    for each, tensor in file.tensors.items():
        if each in mix:
            stored_type = TYPES[mix[each]]
            shape, size = (
                (held[each][0], stored_type.matrix_bytes(1, held[each][1])),
                stored_type.matrix_bytes(*held[each]),
            )
            stored = GGMLQuantizationType(stored_type.code)
            writer.add_tensor_info(each, shape, np.dtype(np.uint8), size, raw_dtype=stored)
        else:
            kept = tuple(tensor.data.shape)
            writer.add_tensor_info(each, kept, tensor.data.dtype, int(tensor.n_bytes), tensor.tensor_type)

    def made(each: str) -> AnyArray:
        found: AnyArray = pack(each, mix[each]) if each in mix else file.tensors[each].data
        return found

    return write_file(writer, [partial(made, each) for each in file.tensors], path, resumable=True, on_tensor=on_tensor)
