"""Program that converts decoders to ``.pte`` files; runs in the environment ``executorch`` (``core/environments.py``).

A file has the method ``forward(tokens (1, T), start (1,)) -> logits (1, V)`` of the last position, for any T, as
ExecuTorch's own runner of language models expects. The cache is inside the method.

Axes: T new tokens, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers llama::sdpa_with_kv_cache
from safetensors.torch import load_file
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor

from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.export.decoder_module import Decoder
from chipwise.deploy.runtimes.torch_serving import load
from chipwise.model.kinds.text.module import Transformer

NARROW = {"int8": torch.int8, "int4": getattr(torch, "int4")}  # noqa: B009 - not in its types


class CachedDecoder(Decoder):
    """``model`` with a cache of ``max_tokens`` positions for one sequence."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        for number, layer in enumerate(self.arch.layers):
            if (block := layer.attention) is not None:
                shape = (1, self.arch.max_tokens, block.kv_heads, block.head_size)
                self.register_buffer(f"k{number}", torch.zeros(shape))
                self.register_buffer(f"v{number}", torch.zeros(shape))

    def forward(self, tokens_1T: Tensor, start_1: Tensor) -> Tensor:
        """Returns the logits (1, V) of the last token; the first token is at the position ``start_1``."""
        start, count = start_1[0].item(), tokens_1T.shape[1]
        torch._check(start >= 0)
        torch._check(start < self.arch.max_tokens)

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = getattr(self, f"k{number}"), getattr(self, f"v{number}")
            y: Tensor = torch.ops.llama.sdpa_with_kv_cache(q, k, v, keys, values, start, count, None, 0.0, True)
            return y

        return self.logits(self.states(tokens_1T, start_1 + torch.arange(count), attend)[:, -1])


def narrow(matrix: Tensor, form: torch.dtype, scales: Tensor) -> Tensor:
    """Stores a matrix (n, k) as integers and ``scales`` (n, blocks), for matrix products with int8 activations."""
    made: Tensor = IntxUnpackedToInt8Tensor.from_hp(
        matrix,
        (1, matrix.shape[1] // scales.shape[1]),
        form,
        activation_quantization="int8_asym_per_token",
        intx_choose_qparams_algorithm=None,
        custom_scale=scales,
        custom_zero_point=torch.zeros_like(scales, dtype=torch.int8),
    )
    return made


def write(job: Message, report: Report) -> Message:
    """Converts a file that ``torch_serving.export`` wrote."""
    model, _ = load(job["weights"])
    decoder, formats, facts = CachedDecoder(model).eval(), job["formats"], job["facts"]
    most = model.arch.max_tokens
    for name, scales in load_file(job["scales"]).items():
        matrix = decoder.get_parameter(name)
        module = decoder.get_submodule(name.removesuffix(".weight"))
        module.weight = nn.Parameter(narrow(matrix, NARROW[formats[name]], scales), requires_grad=False)
    given = (torch.zeros(1, min(5, most), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    with torch.no_grad():
        exported = torch.export.export(
            decoder, given, dynamic_shapes=({1: torch.export.Dim("T", min=1, max=most)}, None), strict=False
        )
    told = {
        "chipwise": torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8),
        "get_max_seq_len": most,
        "get_max_context_len": most,
        "get_vocab_size": model.arch.vocab_size,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
        "enable_dynamic_shape": True,
    }
    lowered = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        constant_methods=told,
    ).to_executorch()
    Path(job["out"]).write_bytes(lowered.buffer)
    return {"bytes": len(lowered.buffer)}


if __name__ == "__main__":
    serve(write)
