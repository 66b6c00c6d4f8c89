"""Program that converts decoders to Core ML packages; runs in the environment ``coreml`` (``core/environments.py``).

A package has two int32 inputs: ``tokens`` (1, T), where T is from 1 to the model's number of positions, and ``start``
(1,), the position of the first token. The output is the FP32 ``logits`` (1, V) of the last token. Each layer with
attention has two states, ``k0`` and ``v0`` for layer 0, (1, K, S, H), in FP16 because Core ML allows no other type. If
the model has a matrix in FP32, the package computes in FP32, else in FP16. Matrices in int8 and int4 have the same
integers and scales as after chipwise's rounding.

Axes: T new tokens, S positions, N query heads, K KV heads, H head size, V vocabulary.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import coremltools as ct
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.export.decoder_module import Decoder
from chipwise.deploy.runtimes.torch_serving import load
from chipwise.errors import MeasurementError
from chipwise.model.kinds.text.module import Transformer

BITS = {"int8": 8, "int4": 4}
INPUTS, OUTPUTS = ["tokens", "start"], ["logits"]
QUANTIZATION = 3  # the converter's code for this kind of compression


class Stateful(Decoder):
    """``model`` with a KV cache for one sequence of ``max_tokens`` positions; its buffers become Core ML's states."""

    products = False  # squares may exceed FP16; the converter scales them in norms that it recognises

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.states_of: dict[str, tuple[int, int, int, int]] = {}
        self.groups: dict[int, int] = {}  # query heads per KV head, by layer
        for number, layer in enumerate(self.arch.layers):
            if (block := layer.attention) is not None:
                self.groups[number] = block.heads // block.kv_heads
                for part in "kv":
                    shape = (1, block.kv_heads, self.arch.max_tokens, block.head_size)
                    self.states_of[f"{part}{number}"] = shape
                    self.register_buffer(f"{part}{number}", torch.zeros(shape))

    def forward(self, tokens_1T: Tensor, start_1: Tensor) -> Tensor:
        """Returns the logits (1, V) of the last token; the first token is at the position ``start_1``."""
        count = tokens_1T.shape[1]
        start, end = start_1[0], start_1[0] + count
        positions_T = start_1 + torch.arange(count)
        seen_TS = torch.arange(self.arch.max_tokens)[:end] <= positions_T[:, None]

        def attend(number: int, q_1TNH: Tensor, k_1TKH: Tensor, v_1TKH: Tensor) -> Tensor:
            """Computes attention; one matrix product covers all query heads that share a KV head."""
            (_, kv_heads, _, size), group = self.states_of[f"k{number}"], self.groups[number]
            keys, values = getattr(self, f"k{number}"), getattr(self, f"v{number}")
            keys[:, :, start:end] = k_1TKH.transpose(1, 2)
            values[:, :, start:end] = v_1TKH.transpose(1, 2)
            q = q_1TNH.transpose(1, 2).reshape(1, kv_heads, -1, size)
            seen = seen_TS.repeat(group, 1)
            y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], attn_mask=seen)
            return y.reshape(1, kv_heads * group, -1, size).transpose(1, 2)

        return self.logits(self.states(tokens_1T, positions_T, attend)[:, -1])


def mark(decoder: Stateful, scales: Mapping[str, Tensor], formats: Mapping[str, str]) -> None:
    """Tells the converter for each rounded matrix its integer format and its scales (n, blocks)."""
    decoder.register_buffer("_COREML_/metadata_version", torch.tensor(1))
    for name, held in scales.items():
        module, _, parameter = name.rpartition(".")
        told = {
            "compression_type": torch.tensor([QUANTIZATION]),
            "quantization_n_bits": torch.tensor(BITS[formats[name]]),
            "quantization_scale": held,
        }
        for key, value in told.items():
            decoder.get_submodule(module).register_buffer(f"_COREML_/{parameter}/{key}", value)


def write(job: Message, report: Report) -> Message:
    """Converts a file that ``torch_serving.export`` wrote."""
    model, _ = load(job["weights"])
    decoder, formats, most = Stateful(model).eval(), job["formats"], model.arch.max_tokens
    mark(decoder, load_file(job["scales"]), formats)
    matrices = {f"{name}.weight" for name, module in decoder.named_modules() if isinstance(module, nn.Linear)}
    given = (torch.zeros(1, min(5, most), dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
    with torch.no_grad():
        traced = torch.jit.trace(decoder, given, check_trace=False)
    count = ct.RangeDim(lower_bound=1, upper_bound=most, default=1)
    made = ct.convert(
        traced,
        inputs=[
            ct.TensorType(name=name, shape=shape, dtype=np.int32)
            for name, shape in zip(INPUTS, ((1, count), (1,)), strict=True)
        ],
        outputs=[ct.TensorType(name=name, dtype=np.float32) for name in OUTPUTS],
        states=[
            ct.StateType(wrapped_type=ct.TensorType(shape=shape, dtype=np.float16), name=name)
            for name, shape in decoder.states_of.items()
        ],
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32 if matrices - set(formats) else ct.precision.FLOAT16,
        skip_model_load=True,
    )
    made.user_defined_metadata["chipwise"] = json.dumps(job["facts"])
    package = Path(job["out"]).with_suffix(".mlpackage")  # without this suffix nothing is written
    made.save(str(package))
    has = ct.utils.load_spec(str(package)).description
    found = [sorted(each.name for each in part) for part in (has.input, has.output, has.state)]
    if found != [sorted(each) for each in (INPUTS, OUTPUTS, decoder.states_of)]:
        raise MeasurementError(f"the package that coremltools wrote has unexpected inputs, outputs or states: {found}")
    package.replace(job["out"])
    return {"names": found}


if __name__ == "__main__":
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    serve(write)
