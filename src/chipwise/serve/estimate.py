"""Estimates of served models from data sheets: requests in, arrays of answers out, one code path for one or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.errors import ChipwiseError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.serve.batching import Constants, constants, halfwidth_key, tpot_s
from chipwise.serve.memory import DeviceMemory, device_memory
from chipwise.serve.request import Request, Resolved, resolved
from chipwise.serve.setting import Setting, Step
from chipwise.serve.steps import Pass, PassTimes, price_passes

Array = npt.NDArray[np.float64]
MODEL = "serving@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests that share model, plan, formats, runtime and device, as arrays."""

    setting: Setting
    device: DeviceProfile
    rows: tuple[int, ...]  # places in the list of requests
    replica_batch: npt.NDArray[np.int64]  # sequences that one replica of attention decodes at once
    in_flight: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    new_tokens: npt.NDArray[np.int64]
    cached_tokens: npt.NDArray[np.int64]  # of the prompt, found in the cache

    def prefill(self) -> Pass:
        """One prompt's pass: over what the cache does not hold."""
        ones = np.ones(len(self.rows), dtype=np.int64)
        new = self.prompt_tokens - self.cached_tokens
        step = Step(batch=ones, query_tokens=new, past_tokens=self.cached_tokens)
        return Pass(setting=self.setting, step=step, device=self.device, rows=len(self.rows))

    def decode(self) -> Pass:
        """The step in the middle of generation, all sequences together."""
        ones = np.ones(len(self.rows), dtype=np.int64)
        step = Step(batch=self.replica_batch, query_tokens=ones, past_tokens=self.prompt_tokens + self.new_tokens // 2)
        return Pass(setting=self.setting, step=step, device=self.device, rows=len(self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """What a group's requests take. Arrays have one value a request; a first token takes ``prefill_s``."""

    group: Group
    prefill: PassTimes
    decode: PassTimes
    prefill_s: Array
    step_s: Array
    tpot_s: Array
    log_halfwidth: Array
    situation: str
    memory: DeviceMemory

    @property
    def tokens_per_s(self) -> Array:
        """New tokens of all requests in flight, prompts' passes included."""
        group = self.group
        result: Array = group.in_flight * group.new_tokens / (self.prefill_s + group.new_tokens * self.tpot_s)
        return result


def grouped(requests: Sequence[Request]) -> tuple[list[Group], dict[int, ChipwiseError]]:
    """The requests by what they share, and the errors of those that cannot be answered."""
    together: dict[int, tuple[Resolved, list[int]]] = {}
    errors: dict[int, ChipwiseError] = {}
    for i, request in enumerate(requests):
        try:
            found = resolved(request)
        except ChipwiseError as error:
            errors[i] = error
            continue
        together.setdefault(id(found), (found, []))[1].append(i)
    groups = []
    for found, rows in together.values():
        plan = found.setting.plan
        sizes = np.array([_sizes(requests[i]) for i in rows], dtype=np.int64)
        groups.append(
            Group(
                setting=found.setting,
                device=found.device,
                rows=tuple(rows),
                replica_batch=-(-sizes[:, 0] // (plan.dp * plan.pp)),
                in_flight=sizes[:, 0],
                prompt_tokens=sizes[:, 1],
                new_tokens=sizes[:, 2],
                cached_tokens=sizes[:, 3],
            )
        )
    return groups, errors


def _sizes(request: Request) -> tuple[int, int, int, int]:
    return request.batch, request.prompt_tokens, request.new_tokens, request.cached_tokens


def price_groups(
    groups: Sequence[Group], *, fold: str | None = None
) -> list[tuple[PassTimes, PassTimes] | Unsupported]:
    """The kernels of every group's prefill and decode; what a device cannot do is answered with the reason."""
    try:
        times = price_passes([each for group in groups for each in (group.prefill(), group.decode())], fold=fold)
    except Unsupported as error:
        if len(groups) == 1:
            return [error]
        return [answer for group in groups for answer in price_groups([group], fold=fold)]
    return list(zip(times[::2], times[1::2], strict=True))


def cost_groups(groups: Sequence[Group], *, fold: str | None = None) -> list[GroupCost | Unsupported]:
    """The cost of every group; what a device cannot do is answered with the reason."""
    known = constants(fold)
    return [
        times if isinstance(times, Unsupported) else _cost(group, *times, known)
        for group, times in zip(groups, price_groups(groups, fold=fold), strict=True)
    ]


def _cost(group: Group, prefill: PassTimes, decode: PassTimes, known: Constants) -> GroupCost:
    runtime = group.setting.runtime
    prefill_s, step_s = known.step_s(prefill, runtime, 0), known.step_s(decode, runtime, group.replica_batch)
    share = known.prefill_share if runtime.mixes else 1.0
    situation = min((prefill.situation, decode.situation), key=("unseen", "sibling", "seen").index)
    replicas = group.setting.plan.dp
    mixture = any(part.op.kind in ("experts", "looped_experts") for part in decode.parts)
    tpot = tpot_s(
        step_s,
        prefill_s,
        in_flight=np.maximum(group.in_flight / replicas, 1),
        new_tokens=group.new_tokens,
        share=share,
    )
    return GroupCost(
        group=group,
        prefill=prefill,
        decode=decode,
        prefill_s=prefill_s,
        step_s=step_s,
        tpot_s=tpot,
        log_halfwidth=_halfwidth(known, decode, mixture=mixture, situation=situation),
        situation=situation,
        memory=device_memory(
            group.setting,
            group.device,
            prefill=prefill.parts,
            decode=decode.parts,
            tokens=group.prompt_tokens + group.new_tokens,
            rows=len(group.rows),
        ),
    )


def _halfwidth(known: Constants, decode: PassTimes, *, mixture: bool, situation: str) -> Array:
    """Half width of served runs in this situation; on a device unlike any that was measured, at least its kernels'."""
    width = np.full(len(decode.latency_s), known.log_halfwidth[halfwidth_key(mixture=mixture, situation=situation)])
    return np.maximum(width, decode.log_halfwidth) if situation == "unseen" else width
