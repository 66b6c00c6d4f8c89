"""Estimates models whose layers are split between a graphics card and its host, as llama.cpp splits GGUF files.

``-ngl N`` puts the last N layers on the card, and also the output matrix if N is above the number of layers.
``--n-cpu-moe M`` keeps the experts of the first M layers in the host's memory. For each new token, the host computes
the host's layers and the card computes the card's layers, one after the other:

    step = kernels of the card's share, as on the card alone + kernels of the host's share, as on the host alone
           + crossings x (hidden state / link + a copy's latency)

Both shares are predicted by the law that was fitted to llama.cpp on cards alone and on processors alone; a processor is
bound by its memory bandwidth. For prompts of 32 tokens or more, llama.cpp sends the host's weights to the card once per
512 tokens. Layers are assumed to be equal. Nine published runs on one machine (an RTX 2080 with an i9-10900X), which no
fit used, all lie inside the interval; the median prediction is 19 % too fast.

Sources: llama.cpp, tools/server/README.md (the options; logical and physical batches), ggml-cuda.cu (``offload_op``: at
least 32 rows), pull request 15077 (--n-cpu-moe). The nine runs: AlexsJones/llmfit, pull requests 755, 774, 775, 778.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from chipwise.core import units
from chipwise.errors import InputError, SpecError, UnitError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.facts import Bandwidth
from chipwise.hardware.runtime import platform_of, runtime_named
from chipwise.predict.cost.model import CostEstimate, OpCost, Predicted, per_second
from chipwise.predict.cost.request import throughput
from chipwise.predict.served.estimate import estimate_of, with_defaults
from chipwise.predict.served.groups import Group, cost_groups, groups_of, memory_of
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import HEAD, resident_bytes
from chipwise.predict.served.request import Request, taken_for

HOST = "core-i7-13700k"
"""The default host: the processor of a desktop from 2022, with two channels of DDR5-5600 (89.6 GB/s)."""
UNKNOWN_HOST = math.log(2)  # log half-width of a host's bandwidth: 42.7 GB/s (DDR4-2666) to 130 GB/s (DDR5-8000)
CROSSING_S = 20e-6  # seconds of a copy between card and host, waiting included; assumed, not fitted
LEAST_SENT = 32  # least prompt tokens for which the host's weights are sent to the card
UBATCH = 512  # prompt tokens per pass
PAGED_SHARE = 0.5  # share of the link's bandwidth for memory that is not pinned; assumed, not fitted
DIVIDES = ("llama.cpp", "llama.cpp-vulkan", "ik-llama.cpp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Number of layers on the card, and number of layers whose experts are on the host.

    The output matrix counts as one layer.
    """

    layers: int
    cpu_experts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A model's depth, and the bytes of its parts if all were on a single device."""

    depth: int
    plain: float  # bytes of layers without their experts
    experts: float
    head: float
    cache: float
    fixed: float  # bytes of activations and the runtime itself

    @classmethod
    def of(cls, group: Group) -> Divided:
        """The parts of the model of ``group``, which has a single request."""
        sizes = {"plain": 0.0, "experts": 0.0, "head": 0.0}
        for part in lower_pass(group.setting, group.decode().step):
            inside = part.place.startswith("layers")
            kind = "head" if part.place == HEAD else "experts" if inside and part.op.kind == "experts" else "plain"
            if inside or kind == "head":
                sizes[kind] += part.owned * float(resident_bytes(part.op))
        memory = memory_of(group).row(0)
        fixed = memory["activations"] + memory["runtime"]
        return cls(depth=len(group.setting.arch.layers), cache=memory["cache"], fixed=fixed, **sizes)

    def shares(self, split: Split) -> tuple[float, float, float]:
        """The shares of the layers, of the experts and of the output matrix that are on the card."""
        layers = min(split.layers, self.depth)
        experts = min(layers, self.depth - split.cpu_experts)
        return layers / self.depth, experts / self.depth, float(split.layers > self.depth)

    def on_card(self, split: Split) -> dict[str, float]:
        """Bytes on the card, by kind."""
        layers, experts, head = self.shares(split)
        weights = self.plain * layers + self.experts * experts + self.head * head
        return {"weights": weights, "cache": self.cache * layers, "activations and runtime": self.fixed}

    def on_host(self, split: Split) -> float:
        """Bytes of weights on the host: those of layers, experts and the output matrix that are not on the card."""
        layers, experts, head = self.shares(split)
        return self.plain * (1 - layers) + self.experts * (1 - experts) + self.head * (1 - head)

    def largest(self, capacity_bytes: float) -> Split:
        """The split with the most weights on a card of this capacity. Experts move to the host before whole layers."""
        all_layers = self.depth + 1
        sparse = range(self.depth + 1) if self.experts else range(1)
        found = [Split(layers=all_layers, cpu_experts=count) for count in sparse]
        found += [replace(found[-1], layers=count) for count in range(self.depth, -1, -1)]
        return next((each for each in found if sum(self.on_card(each).values()) <= capacity_bytes), found[-1])


def host_of(named: str | None) -> DeviceProfile:
    """The data sheet of the host's processor, from its name or from a memory bandwidth such as ``60 GB/s``.

    Raises:
        UnknownName: No chip has this name.
        InputError: The named chip is not a CPU.
    """
    if named is None:
        return datasheet.load(HOST)
    try:
        bandwidth = Bandwidth(value=named, source="as named by the user")
    except (UnitError, SpecError):
        sheet = datasheet.load(named)
        if sheet.kind != "cpu":
            raise InputError(f"--host must be a processor or a bandwidth such as 60 GB/s, not {named}") from None
        return sheet
    sheet = datasheet.load(HOST)
    levels = (replace(each, bandwidth=bandwidth) if each.name == "dram" else each for each in sheet.memory)
    return replace(sheet, name="host", called=f"a host of {named}", memory=tuple(levels))


def divisible(group: Group) -> bool:
    """Whether llama.cpp can split the model of ``group`` between its card and the card's host."""
    arch, device = group.setting.arch, group.device
    decodes = arch.causal and not arch.encoder and arch.reads_tokens and not arch.towers
    alone = device.kind == "gpu" and platform_of(device) != "metal" and group.setting.plan.devices == 1
    return decodes and alone and group.setting.runtime.name in DIVIDES and int(group.in_flight[0]) == 1


def divided(
    request: Request, *, gpu_layers: int | None = None, cpu_experts: int | None = None, host: str | None = None
) -> CostEstimate:
    """Estimates a request to a model split between card and host.

    Args:
        request: One request, in llama.cpp on one card.
        gpu_layers: Number of layers on the card. Default: as many as fit.
        cpu_experts: Number of layers whose experts stay on the host. Default: as few as possible such that all layers
            fit on the card.
        host: See :func:`host_of`. Default: a desktop, which makes the interval wide.

    Raises:
        SpecError: The model has fewer layers than requested.
        Unsupported: The runtime is not llama.cpp on one card with its own memory, or there are several requests.
    """
    group = groups_of([request])[0]
    if not divisible(group):
        raise Unsupported(
            "splitting layers between card and host is only supported for one request to a decoder in llama.cpp "
            "(--runtime llama.cpp), on one GPU that has its own memory"
        )
    parts, sheet = Divided.of(group), host_of(host)
    split = _split(parts, group.device.usable_bytes, gpu_layers, cpu_experts)
    card, other = _each_alone(group, sheet)
    times = _token_times(parts, split, card, other, group)
    width = 0.0
    for part_s, found in ((times.card_s, card), (times.host_s, other)):
        width += part_s / times.token_s * (found.metrics["tpot_p50"].log_halfwidth or 0.0)
    width += times.host_s / times.token_s * (UNKNOWN_HOST if host is None else 0.0) + times.crossed_s / times.token_s
    ttft_s = _prompt_s(request.prompt_tokens, parts, split, card, other, group.device)
    tpot = Predicted.around(times.token_s, width)
    memory = parts.on_card(split)
    answer = replace(
        card,
        ttft_s=ttft_s,
        tpot_s=times.token_s,
        metrics={
            "ttft_p50": Predicted.around(ttft_s, None),
            "tpot_p50": tpot,
            "decode_tokens_per_s": per_second(tpot),
            "throughput": Predicted.around(throughput(ttft_s, times.token_s, request.new_tokens, 1), None),
        },
        decode_step_s=times.token_s,
        peak_memory_bytes=sum(memory.values()),
        memory_bytes=memory,
        prefill=(),
        decode=(),
        bound=None,
        mfu={},
        mbu={},
        does_not_fit=_lacking(parts, split, group.device, sheet),
        on_card=said(split, parts),
        provenance=f"{said(split, parts)}: predicted (sum of card and host; checked on nine runs of one machine)",
        notes=(*_notes(parts, split, sheet, times, named=host), *taken_for(request.model, request.device)),
    )
    return with_defaults(answer, request)


def _split(parts: Divided, capacity_bytes: float, gpu_layers: int | None, cpu_experts: int | None) -> Split:
    """The requested split; by default the split that fits with the most weights on the card.

    Raises:
        SpecError: The model has fewer layers than requested.
    """
    if gpu_layers is None and cpu_experts is None:
        return parts.largest(capacity_bytes)
    layers, experts = parts.depth + 1 if gpu_layers is None else gpu_layers, cpu_experts or 0
    for name, value, most in (("gpu_layers", layers, parts.depth + 1), ("n_cpu_moe", experts, parts.depth)):
        if not 0 <= value <= most:
            raise SpecError(f"must be from 0 to {most}, not {value}", field=name)
    return Split(layers=layers, cpu_experts=experts)


def _each_alone(group: Group, host: DeviceProfile) -> tuple[CostEstimate, CostEstimate]:
    """Two estimates of the whole model: on the card alone, and on the host alone.

    Raises:
        Unsupported: The card or the host lacks a rate.
    """
    setting = group.setting
    if setting.runtime.name == DIVIDES[1]:  # the host does not compute with Vulkan
        setting = replace(setting, runtime=runtime_named(DIVIDES[0]))
    found = []
    for cost in cost_groups([group, replace(group, device=host, setting=setting)]):
        if isinstance(cost, Unsupported):
            raise cost
        found.append(estimate_of(cost, 0))
    return found[0], found[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """Seconds per token on the card, on the host, and for transfers between them."""

    card_s: float
    host_s: float
    crossed_s: float

    @property
    def token_s(self) -> float:
        """Total seconds per token."""
        return self.card_s + self.host_s + self.crossed_s


def _token_times(parts: Divided, split: Split, card: CostEstimate, other: CostEstimate, group: Group) -> TokenTimes:
    shares = [_share(cost, parts.shares(split)) for cost in card.decode]
    each_s = CROSSING_S + 4 * group.setting.arch.d_model / group.device.link("host").bandwidth.number
    return TokenTimes(
        card_s=sum(cost.latency_s * share for cost, share in zip(card.decode, shares, strict=True)),
        host_s=sum(cost.latency_s * (1 - share) for cost, share in zip(other.decode, shares, strict=True)),
        crossed_s=_crossings(parts, split) * each_s,
    )


def _lacking(parts: Divided, split: Split, device: DeviceProfile, host: DeviceProfile) -> str:
    """Message on the memory that the card or the host lacks; empty if both have enough."""
    needed, kept = sum(parts.on_card(split).values()), parts.on_host(split)
    if needed > device.usable_bytes:
        best = said(parts.largest(device.usable_bytes), parts)
        has = f"{device.label} has {device.memory_said}"
        return f"does not fit: {said(split, parts)} need {units.show(needed, 'bytes')}, {has}; {best} fit"
    if kept > host.usable_bytes:
        return f"does not fit: the host must keep {units.show(kept, 'bytes')} and has {host.memory_said} ({host.label})"
    return ""


def remark(request: Request) -> str:
    """Text for a model that does not fit on a card: the part that would fit, and the speed of such a split."""
    try:
        found = divided(request)
    except Unsupported:
        return ""
    rate = found.metrics["decode_tokens_per_s"]
    if found.does_not_fit or rate.low is None or rate.high is None:
        return ""
    speed = units.span(rate.value, rate.low, rate.high, "rate")
    return f"; or {found.on_card}, the rest on its host: {speed} (--gpu-layers auto)"


def said(split: Split, parts: Divided) -> str:
    """Text such as ``20 of 48 layers on the card``, or ``all layers on the card except the experts of 12``."""
    layers = min(split.layers, parts.depth)
    text = f"{'all' if layers == parts.depth else f'{layers} of {parts.depth}'} layers on the card"
    if parts.experts and split.cpu_experts > parts.depth - layers:
        text += f" except the experts of {split.cpu_experts - (parts.depth - layers)}"
    return text


def _share(cost: OpCost, shares: tuple[float, float, float]) -> float:
    """The card's share of an operator's calls. Operators outside the layers run where the output matrix is."""
    layers, experts, head = shares
    if not cost.place.startswith("layers"):
        return head
    return experts if cost.kind == "experts" else layers


def _crossings(parts: Divided, split: Split) -> int:
    """Number of times per token that the hidden state moves between card and host.

    It moves twice for each layer on the card whose experts are on the host. If any layer is on the card, it also moves
    once to the card, and once back if the output matrix is on the host.
    """
    layers = min(split.layers, parts.depth)
    lonely = max(split.cpu_experts - (parts.depth - layers), 0) if parts.experts else 0
    return 2 * lonely + (1 if layers else 0) + (1 if layers and split.layers <= parts.depth else 0)


def _prompt_s(
    tokens: int, parts: Divided, split: Split, card: CostEstimate, other: CostEstimate, device: DeviceProfile
) -> float:
    """Seconds of the pass over the prompt. It runs on the card, to which the host's weights are sent.

    A short prompt is instead computed where the weights are.
    """
    shares = parts.shares(split)
    if tokens < LEAST_SENT:
        pairs = zip(card.prefill, other.prefill, strict=True)
        return sum(a.latency_s * _share(a, shares) + b.latency_s * (1 - _share(a, shares)) for a, b in pairs)
    # The output matrix is only needed for one token; it runs where it is stored.
    layers = parts.on_host(split) - parts.head * (1 - shares[2])
    sent = math.ceil(tokens / UBATCH) * layers
    return card.ttft_s + sent / (PAGED_SHARE * device.link("host").bandwidth.number)


def _notes(parts: Divided, split: Split, host: DeviceProfile, times: TokenTimes, *, named: str | None) -> Iterator[str]:
    options = f"-ngl {split.layers}" + (f" --n-cpu-moe {split.cpu_experts}" if split.cpu_experts else "")
    on_card, on_host, crossed = (units.show(each, "time") for each in (times.card_s, times.host_s, times.crossed_s))
    yield f"llama.cpp {options}; a token takes {on_card} on the card, {on_host} on the host, {crossed} between them"
    bandwidth = units.show(host.mem_bandwidth_bytes_per_s, "bandwidth")
    held = units.show(parts.on_host(split), "bytes")
    yield f"the host keeps {held} of weights and reads them at up to {bandwidth} ({host.label})"
    if named is None:
        yield "the host is assumed, which widens the interval; name yours: --host ryzen-7-7700x or --host '60 GB/s'"
