"""Converts decoders to ``.pte`` files, as a program in the environment of ``core/environments.py``.

A file has the method ``forward(tokens (1, T), start (1,)) -> logits (1, V)`` of the last position, for any T, as
ExecuTorch's own runner of language models expects. The cache is inside. XNNPACK has products, sums and square roots but
no mean and no gather: means are products with a constant row, and the halves of a head are exchanged by a constant
matrix, so that all of a layer but its attention is one call of XNNPACK.

Axes: T new tokens, D model width, N query heads, K KV heads, H head size, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers llama::sdpa_with_kv_cache
from safetensors.torch import load_file
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor

from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.runtimes.torch_serving import load
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.text.module import Transformer

NARROW = {"int8": torch.int8, "int4": getattr(torch, "int4")}  # noqa: B009 - not in its types


class Norm(nn.Module):
    """RMSNorm or LayerNorm with means as products."""

    row: Tensor
    eps: Tensor

    def __init__(self, norm: nn.RMSNorm | nn.LayerNorm) -> None:
        super().__init__()
        width = norm.weight.shape[0]
        self.centred, self.weight, self.bias = isinstance(norm, nn.LayerNorm), norm.weight, getattr(norm, "bias", None)
        self.register_buffer("row", torch.full((1, width), 1 / width))
        self.register_buffer("eps", torch.tensor([norm.eps]))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` (…, width), normed."""
        if self.centred:
            x = x - F.linear(x, self.row)
        x = x * torch.rsqrt(F.linear(x * x, self.row) + self.eps) * self.weight
        return x if self.bias is None else x + self.bias


class Decoder(nn.Module):
    """``model`` with a cache of ``max_tokens`` positions for one sequence."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        arch = model.arch
        self.layers, self.embedding, self.positions = model.layers, model.embedding, model.positions
        self.order, self.arch, self.norm = model.order, arch, model.norm
        self.head = nn.Linear(arch.d_model, arch.vocab_size, bias=False)
        self.head.weight = nn.Parameter(model.head_table.detach().clone())
        sizes = set()
        for number, layer in enumerate(arch.layers):
            if (block := layer.attention) is not None:
                shape = (1, arch.max_tokens, block.kv_heads, block.head_size)
                self.register_buffer(f"k{number}", torch.zeros(shape))
                self.register_buffer(f"v{number}", torch.zeros(shape))
                sizes |= {block.head_size} if block.rope else set()
        for size in sizes:
            cos, sin = model._rotary(size, torch.device("cpu"))
            self.register_buffer(f"cos{size}", torch.cat((cos, cos), -1))
            self.register_buffer(f"sin{size}", torch.cat((-sin, sin), -1))
            self.register_buffer(f"swap{size}", torch.eye(size).roll(size // 2, 0))
        self.sizes = sorted(sizes)
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.RMSNorm | nn.LayerNorm):
                self.set_submodule(name, Norm(module))

    def forward(self, tokens_1T: Tensor, start_1: Tensor) -> Tensor:
        """Logits (1, V) of the last token; the first one is at the position ``start_1``."""
        start, count = start_1[0].item(), tokens_1T.shape[1]
        torch._check(start >= 0)
        torch._check(start < self.arch.max_tokens)
        positions_T = start_1 + torch.arange(count)
        angles = {
            size: tuple(
                F.embedding(positions_T, getattr(self, f"{part}{size}"))[None, :, None] for part in ("cos", "sin")
            )
            for size in self.sizes
        }
        x_1TD = self.embedding(tokens_1T)
        if self.positions is not None:
            x_1TD = x_1TD + self.positions(positions_T)
        for number, (owner, layer) in enumerate(zip(self.order, self.arch.layers, strict=True)):
            part = f"layers.{owner}.{{}}".format
            if layer.attention is not None:
                h_1TD = self.get_submodule(part("attention_norm"))(x_1TD)
                x_1TD = x_1TD + self._attention(number, layer.attention, part("attention.{}"), h_1TD, angles, start)
            if layer.ffn is not None:
                h_1TD = self.get_submodule(part("ffn_norm"))(x_1TD)
                x_1TD = x_1TD + self.get_submodule(part("ffn"))(h_1TD)
        logits_1V: Tensor = self.head(self.norm(x_1TD[:, -1]))
        return logits_1V

    def _attention(
        self,
        number: int,
        block: Attention,
        names: str,
        h_1TD: Tensor,
        angles: dict[int, tuple[Tensor, ...]],
        start: float,
    ) -> Tensor:
        """The output of attention in the layer ``number``; ``names`` is the pattern of its parts' names."""
        part = {name: self.get_submodule(names.format(name)) for name in ("q", "k", "v", "out")}
        count, size = h_1TD.shape[1], block.head_size
        q_1TNH, k_1TKH, v_1TKH = (part[name](h_1TD).view(1, count, -1, size) for name in ("q", "k", "v"))
        if block.qk_norm:
            q_1TNH = self.get_submodule(names.format("q_norm"))(q_1TNH)
            k_1TKH = self.get_submodule(names.format("k_norm"))(k_1TKH)
        if block.rope:
            cos, sin = angles[size]
            swap = getattr(self, f"swap{size}")
            q_1TNH, k_1TKH = (x * cos + F.linear(x, swap) * sin for x in (q_1TNH, k_1TKH))
        keys, values = getattr(self, f"k{number}"), getattr(self, f"v{number}")
        y_1TNH = torch.ops.llama.sdpa_with_kv_cache(q_1TNH, k_1TKH, v_1TKH, keys, values, start, count, None, 0.0, True)
        added_1TD: Tensor = part["out"](y_1TNH.reshape(1, count, -1))
        return added_1TD


def narrow(matrix: Tensor, form: torch.dtype, scales: Tensor) -> Tensor:
    """A matrix (n, k) that is integers times ``scales`` (n, blocks), to be multiplied by activations in int8."""
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
    """Converts the file that ``torch_serving.export`` wrote."""
    model, _ = load(job["weights"])
    decoder, formats, facts = Decoder(model).eval(), job["formats"], job["facts"]
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
