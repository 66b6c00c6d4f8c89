"""Times of latent attention (MLA), which is absorbed in decode and expanded for prompts.

In absorbed form, all heads use one latent vector as key and value: this is attention with one key head of size
``kv_rank + rope_size``, whose first ``kv_rank`` values are also the value. Expanded latent attention is multi-head
attention. The formula and the kind of networks are those of :mod:`.attention`, but with constants of their own.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.dtypes import dtype_of
from chipwise.errors import UnknownName
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import LatentAttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention import answer
from chipwise.predict.kernels.bounded import STACKS
from chipwise.predict.kernels.times import KernelTimes, together

LANES = ("sglang-hopper", "sglang-blackwell", "sglang-plain", "trt-hopper", "trt-blackwell", "trt-plain", "other")
"""Kernel designs, called lanes: SGLang's kernels by GPU generation (FlashAttention 3, NVIDIA's generated kernels, and
Triton), TensorRT-LLM's kernels by GPU generation, and ``other``."""


def lane(stack: str, device: DeviceProfile) -> str:
    """Kernel design that ``stack`` runs on ``device``. vLLM counts as SGLang, the closest stack that was timed.

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
    """Converts ``op`` to ordinary attention with equal FLOPs: the head size is the mean width of keys and values."""
    key, result = np.asarray(op.key_size, dtype=np.float64), np.asarray(op.result_size, dtype=np.float64)
    width = (key + result) / 2
    kv_heads, stored = (1, key / width) if op.absorbed else (op.heads, 2)
    sizes = together(op.batch, op.query_tokens, op.past_tokens, op.heads, kv_heads, width, 0, stored)
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
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device has no rate for the number format of the matrix products.
    """
    call = call_of(op)
    absorbed = np.full(call.batch.shape, op.absorbed)
    schedules = {"decode": absorbed, "context": ~absorbed}
    known = "sglang" if stack == "vllm" else stack
    return answer("latent", op, call, schedules, device, stack=known, lane=lane(stack, device), fold=fold)
