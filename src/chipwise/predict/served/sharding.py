"""Sharding of training states over data-parallel replicas by ZeRO's stages; stage 3 is the full sharding of FSDP.

A parameter takes 2 bytes as a weight, 2 bytes for its gradient, and 12 bytes for optimiser states (a master weight and
Adam's two moments). From stage 1 on, each of N replicas holds only 1/N of the optimiser states. From stage 2 on, it
also holds only 1/N of the gradients, and in stage 3 also only 1/N of the weights.

Communication per step is counted in multiples of all weights. Stage 0 all-reduces the gradients (2). Stages 1 and 2
reduce-scatter the gradients and all-gather the new weights (1 + 1). Stage 3 gathers the weights before the forward pass
and again before the backward pass, and reduce-scatters the gradients (1 + 1 + 1). Stages 2 and 3 reduce-scatter for
each microbatch, because no replica has room for all gradients. In stage 2 weights are gathered once per step, in stage
3 for each microbatch.

References:
    Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054, sections 5 (memory) and 7 (communication).
    Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277: each unit is gathered while the unit before it is
    computed, and freed after use.
"""

from __future__ import annotations

import numpy as np

from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.collective import Collective, CollectiveOp
from chipwise.predict.kernels import times_of
from chipwise.predict.served.plan import Plan, whole_number

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMISER_STATE_BYTES = 2.0, 2.0, 12.0  # bytes per parameter
STAGES = 3


def check_stage(zero: int, plan: Plan) -> None:
    """Checks that training states can be sharded by stage ``zero`` in ``plan``.

    Raises:
        SpecError: The stage does not exist, or its cost is not modelled.
    """
    whole_number(zero, "zero")
    if not 0 <= zero <= STAGES:
        raise SpecError(f"must be a stage from 0 (nothing is sharded) to {STAGES} (FSDP), not {zero}", field="zero")
    if zero and plan.ep > 1:
        raise SpecError("sharding of states is not supported together with expert groups (ep)", field="zero")


def states_bytes(parameters: float, zero: int, replicas: int) -> float:
    """Bytes of weights, gradients and optimiser states on one of ``replicas``."""
    optimiser, gradients, weights = (replicas if zero >= stage else 1 for stage in (1, 2, 3))
    each = OPTIMISER_STATE_BYTES / optimiser + GRADIENT_BYTES / gradients + WEIGHT_BYTES / weights
    return parameters * each


def gathered_bytes(in_layers: float, depth: int, parameters: float) -> float:
    """Bytes of the unsharded parameters that stage 3 holds at once.

    These are the weights outside the layers, the weights of the current layer and of the next layer (gathered ahead),
    and the gradients of one layer.
    """
    layer = in_layers / depth
    return WEIGHT_BYTES * (parameters - in_layers + min(2, depth) * layer) + GRADIENT_BYTES * layer


def communication_s(
    parameters: float,
    plan: Plan,
    device: DeviceProfile,
    *,
    stack: str,
    zero: int,
    microbatches: int,
    forward_s: float,
    backward_s: float,
) -> float:
    """Seconds by which communication among replicas makes a step longer.

    Communication for the forward or the backward pass overlaps with that pass. Gathering new weights after the
    optimiser (stages 1 and 2) does not overlap with computation.
    """
    if plan.dp == 1:
        return 0.0

    def seconds(collective: Collective) -> float:
        op = CollectiveOp(collective=collective, payload_bytes=WEIGHT_BYTES * parameters, devices=plan.dp)
        return float(np.max(times_of(op, device, stack=stack).latency_s))

    if zero == 0:
        return max(0.0, seconds("all_reduce") - backward_s)
    gather, scatter = seconds("all_gather"), seconds("reduce_scatter")
    times = microbatches if zero > 1 else 1
    if zero < STAGES:
        return max(0.0, times * scatter - backward_s) + gather
    return max(0.0, times * gather - forward_s) + max(0.0, times * (gather + scatter) - backward_s)
