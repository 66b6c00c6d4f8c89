"""Memory of one device: weights, KV cache, activations, and the runtime itself.

Memory is computed from the same kernels whose times are predicted, so both have the same sharding, fusion and formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import DType, Size, values_bytes, weight_format
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, GroupedMatmul, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.routing import ExpertsOp
from chipwise.model.ops.scan import ScanOp
from chipwise.predict.served.setting import PlacedOp, Setting
from chipwise.predict.served.towers import of_tower, place_of, tower_setting

CONTEXT_BYTES = {"gpu": 1.0e9, "tpu": 0.5e9, "npu": 0.2e9, "accelerator": 1.0e9, "soc": 0.1e9, "cpu": 0.1e9}
"""Bytes of a process without a model (driver context, libraries, captured graphs), by kind of device. On NVIDIA GPUs
these are 0.5 GB of CUDA context and 0.5 GB of workspaces. All figures are assumed, not fitted."""
SHORT_TAPS = 8  # longest depthwise convolution whose few weights are ignored
HEAD = "head.logits"  # place of the matrix that may be tied to the token table
CHUNK_TOKENS = 8192  # maximum new positions of a pass in runtimes with chunked prefill (vLLM's default on large GPUs)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory in bytes, by kind, on the device that needs the most memory. Arrays have one value per request."""

    weights: Float64Array
    cache: Float64Array
    activations: Float64Array
    runtime: Float64Array

    @property
    def peak_bytes(self) -> Float64Array:
        """Total bytes of all kinds."""
        return self.weights + self.cache + self.activations + self.runtime

    def row(self, i: int) -> dict[str, float]:
        """The bytes for request ``i``, by kind."""
        return {each.name: float(getattr(self, each.name)[i]) for each in fields(self)}


def device_memory(
    setting: Setting,
    device: DeviceProfile,
    *,
    prefill: Sequence[PlacedOp],
    decode: Sequence[PlacedOp],
    tokens: Size,
    microbatches: Size,
    rows: int,
) -> DeviceMemory:
    """Memory of the device that needs the most memory.

    Args:
        setting: Model, plan, formats, runtime.
        device: The device.
        prefill: Kernels of the pass over one prompt.
        decode: Kernels of a decode step.
        tokens: Positions per sequence in the decoder's cache at the end of generation.
        microbatches: Number of decode batches in the pipeline. Each stage works on one of them at a time, but keeps the
            cache of its layers for all of them.
        rows: Number of requests, which is the length of arrays.
    """
    read = [part for part in prefill if of_tower(part)]
    prefill = [part for part in prefill if not of_tower(part)]
    cache: Size = sum(part.count * cache_bytes(part.op, tokens) for part in decode)

    def spread(values: Size) -> Float64Array:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), rows).copy()

    weights: Size = held(setting, prefill if setting.arch.encoder else decode, resident_bytes)
    activations: Size = activation_bytes(setting, prefill, decode)
    for tower in setting.arch.towers:
        own, parts = tower_setting(tower, setting), [part for part in read if part.place.startswith(place_of(tower))]
        if parts:
            weights = weights + held(own, parts, resident_bytes)
            activations = np.maximum(activations, activation_bytes(own, parts, ()))
    return DeviceMemory(
        weights=spread(weights),
        cache=spread(cache * microbatches * stage_share(setting)),
        activations=spread(activations),
        runtime=spread(CONTEXT_BYTES[device.kind]),
    )


def activation_bytes(setting: Setting, prefill: Sequence[PlacedOp], decode: Sequence[PlacedOp]) -> Size:
    """Bytes of activations: a prompt's residual stream twice, and the operands of the largest matrix product."""
    chunk = CHUNK_TOKENS if setting.runtime.mixes else None
    stream = _rows(prefill) if chunk is None else np.minimum(_rows(prefill), chunk)
    live: Size = 0
    for part in (*prefill, *decode):
        live = np.maximum(live, _live_bytes(part.op, chunk=chunk))
    return 2 * stream * setting.arch.d_model * DType(setting.formats.activations).size_bytes + live


def stage_share(setting: Setting) -> float:
    """Share of all layers that are on the pipeline stage with the most layers."""
    depth = len(setting.arch.layers)
    return -(-depth // setting.plan.pp) / depth


def held(setting: Setting, parts: Sequence[PlacedOp], size_of: Callable[[Op], Size]) -> Size:
    """Sum of ``size_of`` over the operators of ``parts`` on the device that holds the most weights.

    Weights that several layers share count once. Tied embedding and head are one table on a single device; in a
    pipeline, the first and the last stage each hold a copy.
    """
    arch = setting.arch
    body = sum(part.owned * size_of(part.op) for part in parts if not (_is_embedding(part) or part.place == HEAD))
    looked_up = [part.op for part in parts if _is_embedding(part) and isinstance(part.op, EmbeddingOp)]
    tables = {op.width: op for op in looked_up}
    body += sum(
        size_of(op) for width, op in tables.items() if width != arch.d_model
    )  # the encoder's table, if its width is different
    embedding = tables.get(arch.d_model)  # None for ranking and audio models
    positions = arch.stem.token_types + (
        arch.max_tokens + arch.stem.extra_positions if arch.positions == "learned" else 0
    )
    first = 0 if embedding is None else size_of(embedding)
    if embedding is not None and positions:
        first += size_of(replace(embedding, rows=positions))
    last = next((size_of(part.op) for part in parts if part.place == HEAD), 0)
    if setting.plan.pp > 1:
        return stage_share(setting) * body + max(first, last)
    return body + first + (0 if arch.tie_embeddings else last)


def _is_embedding(part: PlacedOp) -> bool:
    """Whether ``part`` looks up token embeddings; look-ups of per-layer embeddings do not count."""
    return isinstance(part.op, EmbeddingOp) and part.place.endswith("embedding")


def resident_bytes(op: Op) -> Size:
    """Bytes of all parameters of ``op`` in memory, including scales and parameters that a pass does not use."""
    if isinstance(op, Matmul):
        bias = op.n * values_bytes(1, op.activations) if op.bias else 0
        return weight_format(op.weights).matrix_bytes(op.k, op.n) + bias
    if isinstance(op, ConvOp) and (op.groups == 1 or op.groups < op.in_channels or op.taps > SHORT_TAPS):
        return op.work().weight_bytes
    if isinstance(op, ExpertsOp):
        stored = weight_format(op.weights)
        matrices = (2 if op.gated else 1) * stored.matrix_bytes(op.d_model, op.width)
        return op.local_experts * (matrices + stored.matrix_bytes(op.width, op.d_model))
    if isinstance(op, GroupedMatmul):
        return op.groups * weight_format(op.weights).matrix_bytes(op.k, op.n)
    if isinstance(op, EmbeddingOp):
        return weight_format(op.weights).matrix_bytes(op.rows, op.width)
    if isinstance(op, NormOp):
        return values_bytes(op.width, op.activations) * (2 if op.bias else 1)
    return 0


def cache_bytes(op: Op, tokens: Size) -> Size:
    """Bytes that ``op`` keeps between passes for ``tokens`` positions of each sequence.

    These are keys and values, latent vectors, or a recurrent state. Cross-attention keeps the keys and values of the
    encoder's sequence; bidirectional attention keeps nothing.
    """
    if isinstance(op, AttentionOp):
        if not (op.causal or op.cross) or not op.owns_cache:
            return 0
        kept = op.past_tokens if op.cross else tokens if op.window is None else np.minimum(tokens, op.window)
        return 2 * op.batch * kept * op.kv_heads * op.head_size * DType(op.cache).size_bytes
    if isinstance(op, LatentAttentionOp):
        return op.batch * tokens * (op.kv_rank + op.rope_size) * DType(op.cache).size_bytes
    if isinstance(op, ScanOp):
        return values_bytes(op.state_values, op.state)
    return 0


def _rows(parts: Sequence[PlacedOp]) -> Size:
    """Number of new positions of a pass: those that its embedding looks up."""
    looked_up = [part.op.tokens for part in parts if isinstance(part.op, EmbeddingOp)]
    return looked_up[0] if looked_up else [part.op.rows for part in parts if isinstance(part.op, NormOp)][-1]


def _live_bytes(op: Op, *, chunk: int | None) -> Size:
    """Bytes of a matrix product's input and output for at most ``chunk`` positions; 0 for other operators."""
    if not isinstance(op, Matmul):
        return 0
    rows = op.m if chunk is None else np.minimum(op.m, chunk)
    return rows * (op.k + op.n) * values_bytes(1, op.activations)
