"""Fused attention with plain, grouped or shared key heads: prompts, single tokens, windows.

Physics first (:mod:`.attention_physics`): constants a kernel design, fitted on pooled devices. A bounded network
corrects what physics leaves, in full on devices that were in the fit, less and less far from them
(:mod:`.attention_fit`).
"""

from __future__ import annotations

import numpy as np

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import AttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention_fit import fitted, lane
from chipwise.predict.kernels.times import KernelTimes, launch_s
from chipwise.predict.kernels.unfused import unfused_times


def times(op: AttentionOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` on ``device``, as one fused kernel; with scores in memory where ``op`` is not fused.

    Args:
        op: Attention; sizes may be arrays.
        device: Any data sheet.
        stack: Whose kernels: ``vllm``, ``sglang`` or ``trtllm``.
        fold: None for what ships; ``device:NAME`` or ``family:NAME`` for the model fitted without them.

    Raises:
        Unsupported: The device has no rate for the format of the products.
    """
    if not op.fused:
        return unfused_times(op, device, stack=stack, fold=fold)
    model = fitted()
    chip = physics.Chip.of(device, op.activations)
    call = physics.Call.of(op)
    design, chosen = lane(stack, device, op.cache), model.fold(fold)
    decode = physics.base_s(physics.decode(call, chip), model.constants("decode", design, chosen))
    context = physics.base_s(physics.context(call, chip), model.constants("context", design, chosen))
    # Several new positions after a cache: runtimes have kernels of both sorts and take the faster.
    resumed = np.where(call.past > 0, np.minimum(decode, context), context)
    latency = np.where(call.queries == 1, decode, resumed)
    work = op.work()
    moved = np.broadcast_to(np.asarray(work.bytes, dtype=np.float64), latency.shape)
    flops = np.broadcast_to(np.asarray(work.flops, dtype=np.float64), latency.shape)
    situation = model.situation(device, fold)
    widths = (model.halfwidth(schedule, situation) for schedule in ("decode", "context"))
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.where(call.queries == 1, *widths),
        compute_s=flops / chip.flops_per_s,
        memory_s=moved / chip.bandwidth,
        launch_s=np.full(latency.shape, launch_s(device)),
        situation=situation,
    )
