"""Peak memory of serving a design: stored weights, cache, activations, and the runtime's own memory.

The bytes of all blocks are summed. Activations are the exception: only the block that needs the most bytes counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chipwise.core.dtypes import weight_format
from chipwise.hardware.device import MemoryCost
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import matrix_of
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.weights import weight_shapes

BuiltBlock = Attention | ConvModule | FeedForward  # block types of models that can be exported


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Memory of a served model in bytes: token table, matrices, KV cache and activations."""

    table_bytes: int  # FP32: token table (except in llama.cpp), learned positions, norms, biases
    matrices: Mapping[str, int]  # projections and head, by weight format
    kv_bytes: int
    activation_bytes: int

    @property
    def matrix_bytes(self) -> int:
        """Bytes of all matrices."""
        return sum(self.matrices.values())

    def held_bytes(self, cost: MemoryCost) -> dict[str, float]:
        """Predicted bytes of the serving process by purpose, from the calibrated memory cost."""
        return {
            "runtime": cost.base_bytes,
            "token table, norms": cost.per_table_byte * self.table_bytes,
            "matrices": sum(cost.per_matrix_byte[weights] * size for weights, size in self.matrices.items()),
            "KV cache": float(self.kv_bytes),
            "activations": float(self.activation_bytes),
        }

    def peak_bytes(self, cost: MemoryCost) -> float:
        """Predicted peak resident memory of the serving process, from the calibrated memory cost."""
        return sum(self.held_bytes(cost).values())


TABLE_AS_HEAD = "llama.cpp"  # keeps the token table in the head's format; a tied head is that table


def memory_parts(design: Design, workload: Workload, *, runtime: str = "") -> MemoryParts:
    """Memory needed to serve ``design`` under ``workload`` in ``runtime``, split into parts."""
    arch = design.arch
    prompt, new = arch.request_of(workload.prompt_tokens, workload.new_tokens)
    workload = replace(workload, prompt_tokens=prompt, new_tokens=new)
    shapes = arch.stem.matrices(arch.d_model)
    ends = [*shapes, *arch.head.matrices(arch, arch.stem)]
    vectors = arch.stem.parameters(arch.d_model) - sum(into * outputs for into, outputs in shapes)
    vectors += arch.head.vector_parameters(arch, arch.stem)
    table = 4 * (vectors + (arch.final_norm + arch.embedding_norm + arch.crosses) * arch.norm_parameters())
    norms = (2 if arch.norm_place == "both" else 1) * arch.norm_parameters()
    if arch.positions == "learned":
        table += 4 * arch.max_tokens * arch.d_model
    formats = design.formats
    matrices = dict.fromkeys(formats.all, 0)
    if runtime == TABLE_AS_HEAD:
        table -= 4 * arch.vocab_size * arch.d_model
        ends.append((arch.d_model, arch.vocab_size))
    matrices[formats.head] += sum(int(weight_format(formats.head).matrix_bytes(*shape)) for shape in ends)
    if runtime != TABLE_AS_HEAD or not arch.tie_embeddings:
        matrices[formats.head] += head_bytes(arch, formats.head)
    kv = 0
    widest = 0
    for layer, weights in zip(arch.layers, formats.layers, strict=True):
        kv += 4 * workload.batch * layer.conv_state_values(arch.d_model)
        table += 4 * layer.convs * arch.d_model if layer.shares is None else 0
        for block in (layer.attention, layer.cross, layer.conv, layer.ffn):
            if block is None:
                continue
            if layer.shares is None:
                matrices[weights] += block_matrix_bytes(block, arch.d_model, weights)
                table += 4 * (norms + block_vector_parameters(block, arch.d_model))
                if isinstance(block, Attention) and block.relative_buckets:
                    table += 4 * block.heads * arch.stem.own_biases(block.relative_buckets)
            kv += block_kv_bytes(block, workload) if arch.causal else 0
        widest = max(widest, layer_activation_bytes(layer, arch, workload))
    shapes_of = weight_shapes(arch) if formats.matrices else {}
    for name, weights in formats.matrices:
        usual = formats.usual(name)
        for shape in (shape for each, shape in shapes_of.items() if matrix_of(each) == name):
            matrices[usual] -= int(weight_format(usual).matrix_bytes(shape[1], shape[0]))
            matrices[weights] += int(weight_format(weights).matrix_bytes(shape[1], shape[0]))
    return MemoryParts(table_bytes=table, matrices=matrices, kv_bytes=kv, activation_bytes=widest)


def head_bytes(arch: ArchSpec, weights: str) -> int:
    """Bytes of the head's own matrix; 0 for a tied FP32 head, because it shares the token table."""
    if arch.tie_embeddings and weights == "fp32":
        return 0
    return int(weight_format(weights).matrix_bytes(arch.d_model, arch.outputs))


def block_matrix_bytes(block: BuiltBlock, d_model: int, weights: str) -> int:
    """Bytes of a block's projections, scales included."""
    stored = weight_format(weights)
    if isinstance(block, Attention):
        into = block.query_width * (1 + block.pointwise) + 2 * block.kv_width
        return int(stored.matrix_bytes(d_model, into) + stored.matrix_bytes(block.query_width, d_model))
    if isinstance(block, ConvModule):
        return int(stored.matrix_bytes(d_model, 2 * d_model) + stored.matrix_bytes(d_model, d_model))
    if block.groups > 1:
        return block.groups * block_matrix_bytes(block.one_group(), d_model // block.groups, weights)
    count = 2 if block.gated else 1
    return int(count * stored.matrix_bytes(d_model, block.width) + stored.matrix_bytes(block.width, d_model))


def block_vector_parameters(block: BuiltBlock, d_model: int) -> int:
    """Number of a block's parameters that are not in matrices: biases and head norms, which stay in FP32."""
    if isinstance(block, Attention):
        matrices = d_model * (block.query_width * (2 + block.pointwise) + 2 * block.kv_width)
    elif isinstance(block, ConvModule):
        matrices = 3 * d_model * d_model
    else:
        matrices = (3 if block.gated else 2) * d_model * block.width // block.groups
    return block.parameters(d_model) - matrices


def block_kv_bytes(block: BuiltBlock, workload: Workload) -> int:
    """Bytes of a block's KV cache in FP32; it holds every position, even if attention is windowed."""
    if not isinstance(block, Attention) or not block.causal:
        return 0
    return 2 * workload.batch * workload.total_tokens * block.kv_width * 4


def layer_activation_bytes(layer: Layer, arch: ArchSpec, workload: Workload) -> int:
    """Peak activation bytes of a layer in prefill: the activation bytes of the block that needs the most."""
    blocks: tuple[BuiltBlock | None, ...] = (layer.attention, layer.conv, layer.ffn)
    found = [block_activation_bytes(block, arch.d_model, workload) for block in blocks if block is not None]
    if layer.cross is not None:
        found.append(_cross_activation_bytes(layer.cross, arch, workload))
    return max(found, default=0)


def _cross_activation_bytes(block: Attention, arch: ArchSpec, workload: Workload) -> int:
    """Peak activation bytes of cross-attention in prefill: the residual stream twice, and the block's own tensors."""
    words, read = workload.prompt_tokens, arch.image_tokens
    scores = block.heads * words * read
    own = words * 2 * block.query_width + read * (2 * block.kv_width + arch.d_model) + scores
    return 4 * workload.batch * (own + 2 * words * arch.d_model)


def block_activation_bytes(block: BuiltBlock, d_model: int, workload: Workload) -> int:
    """Peak activation bytes of a block in prefill: the residual stream twice, and the block's own tensors."""
    rows = workload.batch * workload.prompt_tokens
    if isinstance(block, Attention):
        own = rows * (2 * block.query_width + 2 * block.kv_width)
        seen = min(block.relative_buckets or block.chunk or workload.total_tokens, workload.total_tokens)
        own += workload.batch * block.heads * workload.prompt_tokens * seen
    elif isinstance(block, ConvModule):
        own = rows * 3 * d_model  # the input, and the gated product
    else:
        own = rows * block.width * (3 if block.gated else 2)
    return 4 * (own + 2 * rows * d_model)
