"""A law for the time of a pass in serving engines on chips without kernel timings. It was fitted to whole runs.

The kernels of vLLM and similar engines were only timed on NVIDIA's GPUs. For chips of other vendors, only whole runs
were published: batches of equal requests that start together, timed until the last request has ended. The law predicts
such times as a sum of amounts of work (from lowering and the data sheet) over fitted rates
(``predict/whole_runs/sums.py``). The amounts are reading weights, multiplying, reading the cache, collectives, and host
time per step, per kernel and per sequence. Each rate has a common term, and deviations by engine, vendor, device, and
number of devices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import DType, Size
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.op import Op
from chipwise.predict.kernels.times import Situation
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.setting import PlacedOp, Setting, Step
from chipwise.predict.served.steps import class_of
from chipwise.predict.whole_runs.sums import Amount, Constants, load, named, value_of

DATA = Path(__file__).parent / "data" / "stacks.json"
MOST_SEQUENCES = 256  # --max-num-seqs
FREE_SHARE = 0.9  # share of memory for weights and cache
WORKSPACE_BYTES = 1e9
MEAN_HELD = 1.8  # mean cached positions of a sequence relative to its prompt
BUILT_ALIKE = {"vllm": "vllm", "sglang": "vllm", "deepspeed": "deepspeed"}
"""For each engine, the engine in the fitted runs whose terms are used for it."""
ONE_REQUEST = ("llama.cpp",)  # in llama.cpp's runs, the batch is the number of prompt positions per pass
UNLISTED_LINK = 50e9  # bytes/s, if the sheet lists no link between devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The engine and the devices of a run, which determine the terms that apply."""

    stack: str
    device: DeviceProfile
    devices: int = 1

    @property
    def levels(self) -> tuple[str, ...]:
        """Properties that this run may share with other runs (engine, vendor, device, …), the most general first.

        Fitted rates have a deviation for each of these properties.
        """
        device, several = self.device.name, f"tp{self.devices}"
        own = f"{device}|{self.stack}"
        return self.stack, self.device.vendor, device, own, several, f"{own}|{several}"

    @property
    def place(self) -> str:
        """The device and the engine, as the key of half-widths."""
        return f"{self.device.name}|{self.stack}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a pass's kernels on one device, by kind. Arrays have one value per request."""

    weight_bytes: Float64Array  # bytes of weights of matrix products and experts
    product_flops: Float64Array
    cache_bytes: Float64Array  # bytes moved by attention and by other kernels between matrix products
    attention_flops: Float64Array
    collective_bytes: Float64Array
    collectives: float
    kernels: float

    @classmethod
    def of(cls, parts: Sequence[PlacedOp], rows: int) -> Work:
        """The work of the operators ``parts``."""
        sums: dict[str, Size] = dict.fromkeys(("product_bytes", "product_flops", "bytes", "flops", "collective"), 0.0)
        collectives = kernels = 0.0
        for part in parts:
            moved, flops = _counted(part.op, part.count)
            kind = class_of(part.op.kind)
            if kind == "collective":
                sums["collective"] = sums["collective"] + moved
                collectives += part.count
                continue
            kernels += part.count
            head = "product_" if kind in ("matmul", "experts") else ""
            sums[f"{head}bytes"] = sums[f"{head}bytes"] + moved
            if head or kind == "attention":
                sums[f"{head}flops"] = sums[f"{head}flops"] + flops
        spread = {name: np.broadcast_to(np.asarray(value, float), rows) for name, value in sums.items()}
        return cls(
            weight_bytes=spread["product_bytes"],
            product_flops=spread["product_flops"],
            cache_bytes=spread["bytes"],
            attention_flops=spread["flops"],
            collective_bytes=spread["collective"],
            collectives=collectives,
            kernels=kernels,
        )


def _counted(op: Op, count: int) -> tuple[Float64Array, Float64Array]:
    work = op.work()
    return np.asarray(work.bytes, float) * count, np.asarray(work.flops, float) * count


def pass_law(work: Work, where: Where, *, prompt: bool, sequences: Size, times: Size = 1.0) -> list[Amount]:
    """The amounts of work of ``times`` equal passes; ``whole_runs/sums.py`` predicts the passes' seconds from them.

    Args:
        work: Work of the kernels of one pass.
        where: Engine and devices.
        prompt: Whether the pass processes a prompt instead of decoding.
        sequences: Number of decoding sequences; 0 for a pass over a prompt.
        times: Number of passes.

    Raises:
        Unsupported: The device lists no rate for 16-bit matrix products.
    """
    device = where.device
    bandwidth, peak = device.mem_bandwidth_bytes_per_s, peak_flops_per_s(device)
    first = 10 if prompt else 0

    def amount(kind: str, value: Size, place: int, levels: tuple[str, ...] = where.levels) -> Amount:
        return Amount(np.asarray(value * times, float), first + place, named(kind, levels))

    flops = work.product_flops + work.attention_flops if prompt else work.product_flops
    law = [
        amount("weights", work.weight_bytes / bandwidth, 0),
        amount("flops.prompt" if prompt else "flops.decode", flops / peak, 0),
        amount("step", 1.0, 2),
        amount("kernel", work.kernels, 3, where.levels[:4]),
    ]
    if not prompt:
        law.append(amount("cache", work.cache_bytes / bandwidth, 1))
        if where.stack not in ONE_REQUEST:
            law.append(amount("sequence", sequences, 4, where.levels[:4]))
    if where.devices > 1:
        law.append(amount("collective", work.collectives or where.devices, 5))
        if work.collectives:
            law.append(amount("link", work.collective_bytes / link_bytes_per_s(device), 6))
    return law


def peak_flops_per_s(device: DeviceProfile) -> float:
    """Dense rate of 16-bit matrix products.

    Raises:
        Unsupported: The sheet lists no rate for 16-bit matrix products.
    """
    if rate := device.rate(DType.BF16, DType.FP16, DType.FP32):
        return rate
    raise Unsupported(f"{device.name} lists no rate for 16-bit products")


def link_bytes_per_s(device: DeviceProfile) -> float:
    """Bandwidth of the fastest link between devices, or ``UNLISTED_LINK`` if the data sheet lists none."""
    found = [link.bandwidth.number for link in device.links if link.to == "device"]
    return max(found, default=UNLISTED_LINK)


def sequences_held(
    setting: Setting, device: DeviceProfile, batch: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> Float64Array:
    """Number of sequences that fit in memory at once, at least one; all other sequences wait."""
    one = np.ones(1, np.int64)
    work = Work.of(lower_pass(setting, Step(batch=one, query_tokens=1, past_tokens=1000 * one)), 1)
    each = float(work.cache_bytes[0]) / 1001
    free = FREE_SHARE * device.usable_bytes - float(work.weight_bytes[0]) - WORKSPACE_BYTES
    fitting = max(free, 2 * WORKSPACE_BYTES) / (each * MEAN_HELD * length)
    held: Float64Array = np.minimum(np.minimum(batch, MOST_SEQUENCES), np.maximum(1.0, fitting))
    return held


@functools.cache
def constants() -> Constants:
    """The bundled constants."""
    return load(DATA)


def served_where(setting: Setting, device: DeviceProfile) -> Where | None:
    """Engine and devices of a setting to which this law applies; None if the law does not apply."""
    if not prices(setting.runtime, setting.arch, device):
        return None
    return Where(stack=BUILT_ALIKE[setting.runtime.name], device=device, devices=setting.plan.tp)


def prices(runtime: Runtime, arch: ArchSpec, device: DeviceProfile) -> bool:
    """Whether this law applies: to decoders in a serving engine, on chips with HBM.

    The chip's vendor must be in the fit, and must not be NVIDIA. Consumer chips are excluded, because they differ too
    much from the chips in the runs.
    """
    if runtime.name not in BUILT_ALIKE or not arch.causal or arch.encoder:
        return False
    known = device.vendor != "NVIDIA" and device.vendor in constants().vendors
    return known and device.kind in ("gpu", "accelerator") and device.level("dram").technology.startswith("HBM")


def held_situation(where: Where, fold: str | None = None) -> tuple[Situation, float]:
    """How close the fit is to ``where`` (seen, sibling or unseen), and the log half-width of predictions for it."""
    held, device = constants(), where.device
    left_out = (fold or "none").partition(":")[0]
    found = held.situation(
        device=device.name,
        vendor=device.vendor,
        place=where.place,
        model="",
        leave_out="vendor" if left_out == "family" else left_out,
    )
    if found == "seen" and where.place not in held.places:
        found = "sibling"
    situations: dict[str, Situation] = {"seen": "seen", "sibling": "sibling"}
    return situations.get(found, "unseen"), held.halfwidth(found, where.place)


def pass_seconds(
    parts: Sequence[PlacedOp], where: Where, *, rows: int, prompt: bool, sequences: Size, fold: str | None
) -> Float64Array:
    """Predicted seconds of one pass, with one value per request.

    Raises:
        Unsupported: The device lists no rate for 16-bit matrix products.
    """
    law = pass_law(Work.of(parts, rows), where, prompt=prompt, sequences=sequences)
    found: Float64Array = np.broadcast_to(np.asarray(value_of(law, constants().terms(fold)), np.float64), rows).copy()
    return found
