"""Program that converts decoders to ``.tflite`` files; runs in the environment ``litert`` (``core/environments.py``).

A file has two signatures: ``decode`` for one token, and ``prefill`` for ``PASS`` tokens (fewer if the model has fewer
positions). Both take these inputs:

- ``tokens`` (1, T) and their ``positions`` (T,).
- ``mask`` (1, 1, S), which is 0 at filled positions of the cache and ``HIDDEN`` at others.
- The cache of each layer: for layer 0, ``cache_k0`` (K, H, S) and ``cache_v0`` (K, S, H). With one KV head, the shapes
  are (H, S) and (S, H).

``prefill`` also takes ``last`` (1,), the index of the last token that is not padding. Both return the ``logits`` (1, V)
of the last token that is not padding, and each layer's new keys, ``k0`` (K, H, T), and values, ``v0`` (K, T, H), which
the caller writes to the cache. Only the shapes of mask and cache depend on S, so that a runtime may resize the cache;
in the file, S is ``max_tokens``.

Axes: T new tokens, S cached positions, D model width, N query heads, K KV heads, G query heads of a KV head, H head
size, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import litert_torch
import ml_dtypes
import numpy as np
import torch
from ai_edge_litert.tools import flatbuffer_utils as tflite
from safetensors.numpy import load_file
from torch import Tensor

from chipwise.core.arrays import AnyArray
from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.export.decoder_module import Decoder
from chipwise.deploy.runtimes.torch_serving import load
from chipwise.errors import MeasurementError

PASS = 32  # tokens of a prompt in one pass
HIDDEN = -1e9  # added to the scores of positions that are not seen
LEAST = 2.0**-14  # smallest scale of a block that FP16 stores with full precision
FACTS = "chipwise"  # the name of the file's metadata, JSON


class Stateless(Decoder):
    """``model`` with its cache among the inputs."""

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Mapping[str, Tensor], last: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns the outputs of a signature, which the module's docstring describes."""
        count, made = tokens.shape[1], dict[str, Tensor]()
        later_TT = torch.full((count, count), HIDDEN).triu(1)

        def attend(number: int, q_1TNH: Tensor, k_1TKH: Tensor, v_1TKH: Tensor) -> Tensor:
            """Computes attention with one softmax over the scores of cached and new positions."""
            size, kv_heads = k_1TKH.shape[3], k_1TKH.shape[2]
            k, v = k_1TKH[0].permute(1, 2, 0), v_1TKH[0].transpose(0, 1)
            made[f"k{number}"], made[f"v{number}"] = k, v
            q = q_1TNH[0].unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)  # (K, G * T, H)
            # Scores are scaled, not queries: the converter would put their scale into a matrix.
            old = product(q, cache[f"k{number}"]) * size**-0.5 + mask
            new = ((torch.bmm(q, k) * size**-0.5).unflatten(1, (-1, count)) + later_TT).flatten(1, 2)
            most = torch.maximum(old.amax(-1, keepdim=True), new.amax(-1, keepdim=True))
            old, new = (old - most).exp(), (new - most).exp()
            y = product(old, cache[f"v{number}"]) + torch.bmm(new, v)
            y = y / (old.sum(-1, keepdim=True) + new.sum(-1, keepdim=True))
            y_1TNH: Tensor = y.unflatten(1, (-1, count)).permute(2, 0, 1, 3).flatten(1, 2)[None]
            return y_1TNH

        x_1TD = self.states(tokens, positions, attend)
        chosen = x_1TD if last is None else (torch.arange(count, dtype=torch.int32) == last).float()[None, None] @ x_1TD
        return {"logits": self.logits(chosen[:, 0]), **made}


def product(x: Tensor, y: Tensor) -> Tensor:
    """Multiplies ``x`` (K, n, k) by ``y`` (K, k, m); with one KV head ``y`` is (k, m) and is not reshaped."""
    return torch.bmm(x, y) if y.ndim == 3 else (x[0] @ y)[None]


def inputs(decoder: Decoder, count: int) -> dict[str, object]:
    """Inputs of the signature for ``count`` tokens."""
    most, cache = decoder.arch.max_tokens, {}
    for number, layer in enumerate(decoder.arch.layers):
        if (block := layer.attention) is not None:
            heads = () if block.kv_heads == 1 else (block.kv_heads,)  # the converter would reshape (1, H, S) to (H, S)
            cache[f"k{number}"] = torch.zeros(*heads, block.head_size, most)
            cache[f"v{number}"] = torch.zeros(*heads, most, block.head_size)
    whole = torch.zeros(count, dtype=torch.int32)
    given = {"tokens": whole[None].clone(), "positions": whole, "mask": torch.zeros(1, 1, most), "cache": cache}
    return given if count == 1 else given | {"last": whole[:1].clone()}


def digest(values: bytes) -> str:
    """Returns a hash by which a matrix is found in the file, because the converter renames matrices."""
    return sha256(values).hexdigest()


@dataclass(frozen=True, slots=True)
class Narrow:
    """A matrix in the file as integers."""

    form: str
    scales: AnyArray  # (n, blocks)
    integers_at: int  # number of the buffer with the integers
    scales_at: int = 0  # number of the buffer with the scales of blocks


def narrow(file: tflite.ModelT, matrices: Mapping[str, tuple[str, str, AnyArray]]) -> None:
    """Stores matrices as integers; ``matrices`` maps digests to name, format and scales (n, blocks).

    When the model runs, the activations that these matrices multiply are rounded to int8, with one scale and one zero
    point for each position.

    Raises:
        MeasurementError: The converter has changed a matrix.
    """
    held, found, used = dict[int, Narrow](), set(), set()
    for place, buffer in enumerate(list(file.buffers)):
        values = b"" if buffer.data is None else bytes(buffer.data)
        if (key := digest(values)) in matrices:
            held[place] = narrowed(file, np.frombuffer(values, np.float32), *matrices[key][1:])
            found.add(key)
    if changed := [name for key, (name, *_) in matrices.items() if key not in found]:
        raise MeasurementError(
            f"the converter has changed the values of {changed[0]}, so its integers cannot be stored"
        )
    for graph in file.subgraphs:
        for op in graph.operators:
            product = file.operatorCodes[op.opcodeIndex].builtinCode == tflite.BuiltinOperator.FULLY_CONNECTED
            wide = graph.tensors[op.inputs[1]] if product else None
            if wide is not None and wide.buffer in held:
                op.inputs[1] = added(graph, wide, held[wide.buffer])
                op.builtinOptions.asymmetricQuantizeInputs = True
            used |= {graph.tensors[index].buffer for index in op.inputs}
    for place in set(held) - used:
        file.buffers[place].data = None


def narrowed(file: tflite.ModelT, values: AnyArray, form: str, scales: AnyArray) -> Narrow:
    """Adds buffers with a matrix's integers and, for int4, its scales, rounded to XNNPACK's 8 significant bits."""
    integers = np.rint(values.reshape(*scales.shape, -1) / scales[..., None]).astype(np.int8)
    if form == "int8":
        return Narrow(form, scales, stored(file, integers))
    integers[scales < LEAST] = 0
    low, high = integers.reshape(-1, 2).T
    short = np.maximum(scales, LEAST).astype(ml_dtypes.bfloat16).astype(np.float16)
    return Narrow(form, scales, stored(file, low & 15 | high << 4), stored(file, short))


def stored(file: tflite.ModelT, values: AnyArray) -> int:
    """Adds a buffer with these values; returns the buffer's index."""
    buffer = tflite.BufferT()
    buffer.data = np.frombuffer(values.tobytes(), np.uint8)
    file.buffers.append(buffer)
    return len(file.buffers) - 1


def added(graph: tflite.SubGraphT, wide: tflite.TensorT, held: Narrow) -> int:
    """Adds the integer tensor that replaces ``wide``; returns the new tensor's index."""
    how = tflite.QuantizationParametersT()
    if held.form == "int8":
        how.scale, how.zeroPoint = held.scales.reshape(-1), np.zeros(len(held.scales), np.int64)
    else:
        blocks = tflite.BlockwiseQuantizationT()
        blocks.scales = tensor(graph, wide.name + b"_scales", held.scales.shape, "FLOAT16", held.scales_at)
        blocks.zeroPoints, blocks.blockSize = -1, wide.shape[1] // held.scales.shape[1]
        how.detailsType, how.details = tflite.QuantizationDetails.BlockwiseQuantization, blocks
    number = tensor(graph, wide.name + b"_narrow", wide.shape, held.form.upper(), held.integers_at)
    graph.tensors[number].quantization = how
    return number


def tensor(graph: tflite.SubGraphT, name: bytes, shape: Iterable[int], kind: str, buffer: int) -> int:
    """Adds a tensor; returns its index."""
    made = tflite.TensorT()
    made.name, made.shape, made.buffer, made.type = name, list(shape), buffer, getattr(tflite.TensorType, kind)
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def write(job: Message, report: Report) -> Message:
    """Converts a file that ``torch_serving.export`` wrote."""
    model, _ = load(job["weights"])
    decoder, formats = Stateless(model).eval(), job["formats"]
    converter = litert_torch.Converter()
    for name, count in (("decode", 1), ("prefill", min(PASS, model.arch.max_tokens))):
        converter.signature(name, decoder, sample_kwargs=inputs(decoder, count))
    with torch.no_grad():
        file = tflite.read_model_from_bytearray(bytearray(converter.convert().model_content()))
    scales = load_file(job["scales"])
    values = {name: decoder.get_parameter(name).detach().numpy().tobytes() for name in scales}
    narrow(file, {digest(values[name]): (name, formats[name], scales[name]) for name in scales})
    told = tflite.schema_fb.MetadataT()
    told.name, told.buffer = FACTS.encode(), stored(file, np.frombuffer(json.dumps(job["facts"]).encode(), np.uint8))
    file.metadata = [*(file.metadata or []), told]
    tflite.write_model(file, job["out"])
    return {"bytes": Path(job["out"]).stat().st_size}


if __name__ == "__main__":
    serve(write)
