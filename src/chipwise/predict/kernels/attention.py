"""Times of fused attention with multi-head, grouped-query or multi-query heads, for prompts, single tokens and windows.

A physical formula comes first (:mod:`.attention_physics`); its constants for each kernel design are fitted to all
devices together. A network with bounded output then corrects the remaining error. The less a device resembles the
devices in the fit, the smaller the correction (:mod:`.attention_fit`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp
from chipwise.predict.kernels import attention_physics as physics
from chipwise.predict.kernels.attention_features import shape
from chipwise.predict.kernels.attention_fit import fitted, lane
from chipwise.predict.kernels.times import KernelTimes, launch_s, together
from chipwise.predict.kernels.unfused import unfused_times

SCHEDULES = {"decode": physics.decode, "context": physics.context}


def times(op: AttentionOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` on ``device``: one fused kernel, or several kernels if ``op`` is not fused.

    Args:
        op: Attention; sizes may be arrays.
        device: Any data sheet.
        stack: The stack whose kernels run: ``vllm``, ``sglang`` or ``trtllm``.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device has no rate for the number format of the matrix products.
    """
    if not op.fused:
        return unfused_times(op, device, stack=stack, fold=fold)
    call = physics.Call.of(op)
    single = call.queries == 1
    resumed = ~single & (call.past > 0)  # several new positions with a cache: the faster of both schedules
    schedules = {"decode": single | resumed, "context": ~single}
    design = lane(stack, device, op.cache)
    return answer("attention", op, call, schedules, device, stack=stack, lane=design, fold=fold)


def answer(
    kind: str,
    op: AttentionOp | LatentAttentionOp,
    call: physics.Call,
    schedules: Mapping[str, npt.NDArray[np.bool_]],
    device: DeviceProfile,
    *,
    stack: str,
    lane: str,
    fold: str | None,
) -> KernelTimes:
    """Times of ``call`` by the physical formula and its correction, but at least the time that memory needs.

    Memory needs time for the bytes of ``op`` that do not fit in the last-level cache.

    Args:
        kind: The fit to use: ``attention`` or ``latent``.
        op: The operator, from which FLOPs and bytes are taken.
        call: The sizes of the operator.
        schedules: For each schedule (``decode``, ``context``), a mask of the rows of ``call`` that can use it. A row
            that can use both schedules gets the shorter time.
        device: Any data sheet.
        stack: The stack whose kernels run.
        lane: The kernel design.
        fold: See :func:`times`.

    Raises:
        Unsupported: The device has no rate for the number format of the matrix products.
    """
    model = fitted(kind)
    chosen = model.fold(fold)
    kinship = model.kinship(device, stack, lane, fold)
    chip = physics.Chip.of(device, op.activations)
    latency = np.full(call.batch.shape, np.inf)
    for schedule, asked in schedules.items():
        if not asked.any():
            continue
        part = call.take(asked)
        parts = SCHEDULES[schedule](part, chip)
        seconds = physics.base_s(parts, model.constants(schedule, lane, chosen))
        inputs = shape(part, chip, parts)
        correction = model.correction(
            inputs, device, schedule=schedule, stack=stack, lane=lane, fold=chosen, kinship=kinship
        )
        latency[asked] = np.minimum(latency[asked], seconds * np.exp(correction))
    work = op.work()
    flops, moved, _ = together(work.flops, work.bytes, latency)
    # Data that does not fit in the last-level cache is read from memory, at most at the published bandwidth.
    latency = np.maximum(latency, (moved - chip.cache_bytes) / chip.bandwidth)
    decode, context = (model.halfwidth(schedule, kinship, chosen, call.head_size) for schedule in SCHEDULES)
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.where(schedules["context"], context, decode),
        compute_s=flops / chip.flops_per_s,
        memory_s=moved / chip.bandwidth,
        launch_s=np.full(latency.shape, launch_s(device)),
        situation=model.situation(device, fold),
    )
