"""Estimates a training step from data sheets: forward, backward, optimiser, and memory.

The backward pass of a matrix product is two products of the same size (gradients of inputs and of weights). Fused
attention takes 2.5 times as long in the backward pass as in the forward pass, memory-bound operators twice as long. The
loss is computed over the logits of all positions. With activation checkpointing, only the inputs of the layers are
kept, and the forward pass of the layers is run again.

References:
    Dao 2023, FlashAttention-2, arXiv:2307.08691, section 4.1: backward FLOPs are 2.5 times those of the forward pass.
    Korthikanti et al. 2022, arXiv:2205.05198: activations kept in training, and recomputation. Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2: one-forward-one-backward schedule; the first stage keeps most activations.
    Micikevicius et al. 2017, arXiv:1710.03740: mixed precision with FP32 master weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core import units
from chipwise.core.dtypes import Size, values_bytes
from chipwise.core.results import Result
from chipwise.errors import DoesNotFit, SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.matmul import ConvOp, GroupedMatmul, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.routing import ExpertsOp
from chipwise.model.ops.work import Work
from chipwise.predict.cost.model import Bound, OpCost, Predicted
from chipwise.predict.kernels.stream import SHARE
from chipwise.predict.served import sharding
from chipwise.predict.served.estimate import operator_costs
from chipwise.predict.served.kernel_times import Call, time_kernels
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import CONTEXT_BYTES, held, resident_bytes, stage_share
from chipwise.predict.served.plan import NODE_DEVICES, whole_number
from chipwise.predict.served.request import MAX_TOKENS
from chipwise.predict.served.setting import PlacedOp, Setting, Step
from chipwise.predict.served.sharding import check_stage
from chipwise.predict.served.steps import PassTimes, class_of

OPTIMISER_BYTES = 30.0  # traffic per parameter: gradient, master and moments read; master, moments and weight written
ATTENTION_BACKWARD = 2.5
STREAM_BACKWARD = 2.0
SUMMED = 8  # the inner dimension of matrix instructions: tokens are padded to a multiple of it


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingEstimate(Result):
    """Predicted cost of one optimiser step: times in seconds, and the bytes on the device that needs most memory.

    ``tokens_per_s`` counts the tokens of all devices. ``operators`` are the kernels of one device: forward pass,
    backward pass (``backward``), recomputation (``again``) and optimiser.
    """

    step: Predicted
    forward_s: float
    backward_s: float
    recompute_s: float
    optimiser_s: float
    communication_s: float  # time that computation does not hide
    tokens_per_s: float
    mfu: float  # 6 FLOPs per active parameter and token, over the dense peak of all devices
    memory_bytes: dict[str, float]
    peak_memory_bytes: float
    device: str
    devices: int
    provenance: str
    operators: tuple[OpCost, ...]

    def headline(self) -> str:
        """Devices, time per step and MFU."""
        several = f"{self.devices} x " if self.devices > 1 else ""
        step = units.show(self.step.value, "time")
        mfu = units.show(self.mfu, "share")
        return f"{several}{self.device}, training: {step} per step, MFU {mfu}; {self.provenance}"

    def rows(self) -> list[dict[str, object]]:
        """One row per part of the step, in seconds."""
        parts = ("forward_s", "backward_s", "recompute_s", "optimiser_s", "communication_s")
        return [{"part": "step", "seconds": self.step.value}] + [
            {"part": name.removesuffix("_s"), "seconds": getattr(self, name)} for name in parts
        ]


def training_step(
    setting: Setting,
    device: DeviceProfile,
    *,
    batch: int,
    tokens: int,
    microbatches: int = 1,
    checkpoint: bool = False,
    zero: int = 0,
    hypothetical: bool = False,
) -> TrainingEstimate:
    """Estimates one optimiser step over ``batch`` sequences of ``tokens`` positions.

    Args:
        setting: Model, plan (``dp`` replicas share the batch), formats, runtime.
        device: A data sheet.
        batch: Number of sequences in the step, over all replicas.
        tokens: Positions per sequence; an encoder-decoder reads and writes this number of positions.
        microbatches: Number of microbatches into which each replica's share is split; they run one after another. A
            pipeline stage keeps the activations of at most as many microbatches as there are stages
            (one-forward-one-backward schedule).
        checkpoint: Whether activations are recomputed.
        zero: ZeRO stage by which replicas shard their states (``predict/served/sharding.py``), from 0 (none) to 3
            (FSDP).
        hypothetical: Whether a step that does not fit in memory is estimated as if it did.

    Raises:
        SpecError: The batch does not divide over replicas and microbatches, or weights are narrower than 16 bits.
        Unsupported: The device lacks a rate.
        DoesNotFit: The step needs more memory than a device has; the message says how much and what would help.
    """
    plan, formats = setting.plan, setting.formats
    for name, value in (("batch", batch), ("tokens", tokens), ("microbatches", microbatches)):
        whole_number(value, name)
        if not 1 <= value <= MAX_TOKENS:
            raise SpecError(f"must be from 1 to {MAX_TOKENS:,}, not {value}", field=name)
    if {formats.weights, formats.experts} != {formats.activations}:
        narrow = formats.weights if formats.weights != formats.activations else formats.experts
        raise SpecError(f"must be bf16, fp16 or fp32 for training, not {narrow}", field="weights")
    if batch % (plan.dp * microbatches):
        raise SpecError(
            f"{batch} sequences cannot be divided into {plan.dp} replicas x {microbatches} microbatches", field="batch"
        )
    check_stage(zero, plan)
    rows = batch // (plan.dp * microbatches)
    one = replace(setting, plan=replace(plan, dp=1)) if plan.ep == 1 else setting
    forward = lower_pass(
        one,
        Step(batch=rows, query_tokens=tokens, past_tokens=0, encoder_tokens=tokens, encode=True, every_logit=True),
    )
    forward = tuple(each for part in forward for each in _with_loss(part, fused=one.runtime.fuses("act_mul")))
    layers = [part for part in forward if not part.place.startswith(("head", "embedding"))]
    first, halfwidth = _costs([(part, 1.0) for part in forward], one, device)
    back, _ = _costs(list(_backward(forward)), one, device, inside="backward.")
    again = _costs([(part, 1.0) for part in layers], one, device, inside="again.")[0] if checkpoint else []
    forward_s, backward_s, recompute_s = (sum(cost.latency_s for cost in costs) for costs in (first, back, again))
    parameters = float(np.max(held(one, forward, resident_parameters)))
    updated = parameters / plan.dp if zero else parameters
    optimiser_s = updated * OPTIMISER_BYTES / (SHARE * device.mem_bandwidth_bytes_per_s)
    passes_s = microbatches * (forward_s + backward_s + recompute_s)
    bubble_s = passes_s * (plan.pp - 1) / microbatches / plan.pp if plan.pp > 1 else 0.0
    passes_s /= plan.pp
    computed_s = passes_s / (forward_s + backward_s)
    communication_s = sharding.communication_s(
        parameters, plan, device, stack=setting.runtime.stack, zero=zero, microbatches=microbatches,
        forward_s=computed_s * forward_s, backward_s=computed_s * backward_s,
    )  # fmt: skip
    step_s = passes_s + bubble_s + optimiser_s + communication_s
    memory = {
        "states": sharding.states_bytes(parameters, zero, plan.dp),
        "activations": _kept_bytes(forward, checkpoint=checkpoint) * min(plan.pp, microbatches) / plan.pp,
        "runtime": CONTEXT_BYTES[device.kind],
    }
    if zero == sharding.STAGES:
        in_layers = float(sum(part.owned * np.max(resident_parameters(part.op)) for part in layers))
        stages = in_layers * stage_share(one)
        memory["gathered"] = sharding.gathered_bytes(stages, -(-len(one.arch.layers) // plan.pp), parameters)
    total_tokens = batch * tokens
    flops = 6 * setting.arch.active_parameters() * total_tokens
    factor = float(np.exp(halfwidth))
    found = TrainingEstimate(
        step=Predicted(value=step_s, low=step_s / factor, high=step_s * factor),
        forward_s=microbatches * forward_s / plan.pp,
        backward_s=microbatches * backward_s / plan.pp,
        recompute_s=microbatches * recompute_s / plan.pp,
        optimiser_s=optimiser_s,
        communication_s=communication_s + bubble_s,
        tokens_per_s=total_tokens / step_s,
        mfu=flops / (step_s * plan.devices * device.peak(setting.formats.activations)),
        memory_bytes=memory,
        peak_memory_bytes=sum(memory.values()),
        device=device.label,
        devices=plan.devices,
        provenance=f"predicted (kernels fitted to inference{f'; ZeRO {zero} by an unchecked formula' if zero else ''})",
        operators=(
            *(_times(cost, microbatches / plan.pp) for cost in (*first, *back, *again)),
            _optimiser(updated, optimiser_s, device),
        ),
    )
    if not hypothetical and found.peak_memory_bytes > device.usable_bytes:
        raise DoesNotFit(_lacking(setting, device, found, checkpoint=checkpoint, zero=zero))
    return found


def _costs(
    parts: Sequence[tuple[PlacedOp, float]], setting: Setting, device: DeviceProfile, *, inside: str = ""
) -> tuple[list[OpCost], float]:
    """The costs of kernels, with times multiplied by each kernel's factor, and the log half-width of their sum."""
    found = time_kernels([Call(op=part.op, device=device, stack=setting.runtime.stack, rows=1) for part, _ in parts])
    passed = PassTimes.of(tuple(part for part, _ in parts), found.figures[:, :, None], found.situations)
    scales = [scale for _, scale in parts]
    costs = [
        _times(replace(cost, place=f"{inside}{cost.place}"), scale)
        for cost, scale in zip(operator_costs(passed, 0), scales, strict=True)
    ]
    widths = passed.figure("log_halfwidth")[:, 0]
    spread = sum(cost.latency_s * float(width) for cost, width in zip(costs, widths, strict=True))
    return costs, spread / sum(cost.latency_s for cost in costs)


def _times(cost: OpCost, scale: float) -> OpCost:
    """The cost with its times multiplied by ``scale``."""
    if scale == 1:
        return cost
    compute_s, memory_s, launch_s = (
        None if value is None else scale * value for value in (cost.compute_s, cost.memory_s, cost.launch_s)
    )
    return replace(cost, latency_s=scale * cost.latency_s, compute_s=compute_s, memory_s=memory_s, launch_s=launch_s)


def _optimiser(parameters: float, seconds: float, device: DeviceProfile) -> OpCost:
    """The cost of Adam's pass over the optimiser states."""
    moved = parameters * OPTIMISER_BYTES
    return OpCost(
        place="optimiser",
        kind="elementwise",
        latency_s=seconds,
        bound=Bound.MEMORY,
        work=Work(flops=0, read_bytes=round(moved), write_bytes=0),
        compute_s=0.0,
        memory_s=moved / device.mem_bandwidth_bytes_per_s,
        launch_s=0.0,
    )


def _with_loss(part: PlacedOp, *, fused: bool) -> Iterator[PlacedOp]:
    """Replaces sampling with the cross-entropy loss; all other operators stay the same.

    A compiled loss passes over the logits twice (for the maximum, then for the sum). Its backward pass reads the logits
    and writes their gradient, which also counts as two passes. In each direction, the two passes take as long as a copy
    of the logits. If the loss is not compiled, logits are widened to FP32 and log-probabilities are written; in the
    backward pass, a gradient is filled in, propagated and narrowed.
    """
    if not isinstance(part.op, SampleOp):
        yield part
        return
    logits, narrow = part.op.rows * part.op.vocabulary, part.op.activations
    passed = Elementwise(function="copy", elements=logits, activations=narrow, output=None if fused else "fp32")
    yield replace(part, place="head.loss", op=passed)
    if not fused:
        wide = Elementwise(function="softmax", elements=logits, activations="fp32")
        yield replace(part, place="head.loss_log", op=wide)


def _backward(parts: Sequence[PlacedOp]) -> Iterator[tuple[PlacedOp, float]]:
    """The kernels of the backward pass, each with a factor on its predicted time."""
    for part in parts:
        op: Op = part.op
        if isinstance(op, Matmul):
            yield replace(part, op=replace(op, n=op.k, k=op.n, bias=False)), 1.0
            summed = -(-op.m // SUMMED) * SUMMED  # padded to the instruction's multiple
            yield replace(part, op=replace(op, m=op.k, k=summed, bias=False)), 1.0
        elif isinstance(op, CollectiveOp) or (isinstance(op, Elementwise) and op.function == "copy"):
            yield part, 1.0
        else:
            yield part, ATTENTION_BACKWARD if class_of(op.kind) == "attention" else STREAM_BACKWARD


def resident_parameters(op: Op) -> Size:
    """Number of parameters that ``op`` holds."""
    if isinstance(op, Matmul):
        return op.k * op.n + (op.n if op.bias else 0)
    if isinstance(op, ExpertsOp):
        return op.local_experts * (3 if op.gated else 2) * op.d_model * op.width
    if isinstance(op, NormOp):
        return op.width * (2 if op.bias else 1)
    if isinstance(op, ConvOp | GroupedMatmul | EmbeddingOp):
        return resident_bytes(op) / values_bytes(1, op.activations)
    return 0


def _kept_bytes(parts: Sequence[PlacedOp], *, checkpoint: bool) -> float:
    """Bytes that are kept for the backward pass: the inputs of all operators.

    With checkpointing, these are the inputs of the layers, and the inputs of all operators in the largest layer.
    """
    groups: dict[str, float] = {}
    counts: dict[str, int] = {}
    ends = 0.0
    for part in parts:
        kept = _input_bytes(part.op)
        if part.place.startswith("layers"):
            group = part.place.split(".")[0]
            groups[group] = groups.get(group, 0.0) + kept
            counts[group] = max(counts.get(group, 0), part.count)
        else:
            ends += kept * part.count
    stream = float(np.max(parts[0].op.work().write_bytes))
    if checkpoint:
        return ends + stream * sum(counts.values()) + max(groups.values())
    return ends + sum(groups[name] * counts[name] for name in groups)


def _input_bytes(op: Op) -> float:
    """Bytes of inputs, and of attention's output, that the backward pass of ``op`` needs."""
    if isinstance(op, Matmul):
        return float(np.max(values_bytes(op.m * op.k, op.activations)))
    if isinstance(op, AttentionOp):
        rows = op.batch * op.query_tokens
        width = (2 * op.heads + 2 * op.kv_heads) * op.head_size
        scores = 0 if op.fused else 2 * op.batch * op.heads * op.query_tokens * (op.query_tokens + op.past_tokens)
        return float(np.max(values_bytes(rows * width + scores, op.activations)))
    if isinstance(op, NormOp | Elementwise):
        return float(np.max(op.work().read_bytes))
    return 0.0


def _lacking(setting: Setting, device: DeviceProfile, found: TrainingEstimate, *, checkpoint: bool, zero: int) -> str:
    held, memory, peak = device.usable_bytes, found.memory_bytes, found.peak_memory_bytes
    parts = ", ".join(f"{name} {units.show(size, 'bytes')}" for name, size in memory.items())
    advice = "more devices (--tp, --pp) or fewer sequences per microbatch"
    if zero < sharding.STAGES and setting.plan.ep == 1:
        replicas = "" if setting.plan.dp > 1 else f"--dp {NODE_DEVICES} "
        advice = f"states sharded over replicas ({replicas}--zero {sharding.STAGES}), {advice}"
    if not checkpoint and memory["states"] + memory["runtime"] < held:
        advice = f"activation checkpointing (--checkpoint), {advice}"
    return (
        f"training {setting.arch.name} needs {units.show(peak, 'bytes')} ({parts}) and {device.label} has "
        f"{device.memory_said}: {units.show(peak - held, 'bytes')} too much; {advice} would help"
    )
