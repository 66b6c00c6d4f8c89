"""Latent attention (MLA): absorbed (one latent is key and value of all heads) for decode, or expanded for prompts.

Absorbed, it is attention with one key head of size ``kv_rank + rope_size``, whose first ``kv_rank`` values are also the
value; expanded, it is multi-head attention. It uses the physics and networks of :mod:`.attention` with separate
constants.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.dtypes import dtype_of
from chipwise.errors import UnknownName
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import LatentAttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import answer
from chipwise.predict.kernels.attention_fit import STACKS
from chipwise.predict.kernels.times import KernelTimes

LANES = ("sglang-hopper", "sglang-blackwell", "sglang-plain", "trt-hopper", "trt-blackwell", "trt-plain", "other")
"""Kernel designs: FlashAttention 3, NVIDIA's generated kernels and Triton's in SGLang; TensorRT-LLM's by generation."""


def lane(stack: str, device: DeviceProfile) -> str:
    """Kernel design that ``stack`` runs on ``device``. vLLM uses SGLang's, the closest that was timed.

    Raises:
        UnknownName: The stack is not one of ``STACKS``.
    """
    if stack not in STACKS:
        raise UnknownName("stack", stack, STACKS)
    if device.vendor != "NVIDIA":
        return "other"
    blackwell = device.architecture in ("Blackwell", "Blackwell Ultra")
    generation = "hopper" if device.family == "hopper" else "blackwell" if blackwell else "plain"
    return f"{'trt' if stack == 'trtllm' else 'sglang'}-{generation}"


def call_of(op: LatentAttentionOp) -> physics.Call:
    """``op`` as attention whose head size is the mean width of keys and values, so that FLOPs are counted correctly."""
    key, result = np.asarray(op.key_size, dtype=np.float64), np.asarray(op.result_size, dtype=np.float64)
    width = (key + result) / 2
    kv_heads, stored = (1, key / width) if op.absorbed else (op.heads, 2)
    asked = (op.batch, op.query_tokens, op.past_tokens, op.heads, kv_heads, width, 0, stored)
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in asked))
    return physics.Call(
        **dict(zip(physics.SIZES, sizes, strict=True)),
        causal=True,
        value_bytes=dtype_of(op.activations).size_bytes,
        cache_bytes=dtype_of(op.cache if op.absorbed else op.activations).size_bytes,
    )


def times(op: LatentAttentionOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` on ``device`` as one fused kernel, without the projections to and from the latent.

    Args:
        op: Latent attention; sizes may be arrays.
        device: Any data sheet.
        stack: The stack whose kernels run: ``vllm``, ``sglang`` or ``trtllm``.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for the fit that left that device or family
            out.

    Raises:
        Unsupported: The device has no rate for the format of the products.
    """
    call = call_of(op)
    absorbed = np.full(call.batch.shape, op.absorbed)
    schedules = {"decode": absorbed, "context": ~absorbed}
    known = "sglang" if stack == "vllm" else stack
    return answer("latent", op, call, schedules, device, stack=known, lane=lane(stack, device), fold=fold)
