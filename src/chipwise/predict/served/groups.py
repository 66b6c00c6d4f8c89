"""Costs of served models from data sheets. Requests are computed as arrays: one request or thousands in one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.errors import ChipwiseError, SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.image_tokens import image_tokens, sound_tokens
from chipwise.predict.cost.request import price_shares, request_total, throughput
from chipwise.predict.served import image_law, intervals, stack_law
from chipwise.predict.served.batching import Constants, constants, tpot_s
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.memory import DeviceMemory, device_memory
from chipwise.predict.served.request import Request, Resolved, names_of, resolved
from chipwise.predict.served.setting import PlacedOp, Setting, Step
from chipwise.predict.served.steps import CLASSES, Pass, PassTimes, time_passes
from chipwise.predict.served.taught_pass import deviation
from chipwise.predict.served.taught_times import corrected
from chipwise.predict.served.towers import SOUND, place_of

MODEL = "serving@1"
SIZES = ("prompt_tokens", "new_tokens", "cached_tokens", "tower_passes", "tower_positions")  # of requests
UNCHECKED_PROMPT = 1.0  # least log half-width of prefill on a machine whose class was not validated


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests with the same model, plan, formats, runtime and device; arrays hold one value per request."""

    setting: Setting
    device: DeviceProfile
    rows: tuple[int, ...]  # indices in the list of all requests
    replica_batch: npt.NDArray[np.int64]  # sequences that one attention replica decodes at once
    in_flight: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int64]
    new_tokens: npt.NDArray[np.int64]
    cached_tokens: npt.NDArray[np.int64]  # prompt tokens found in the cache
    tower_passes: npt.NDArray[np.int64] | None = None  # tower passes for each prompt's images
    tower_positions: npt.NDArray[np.int64] | None = None  # positions of each such pass

    @property
    def generates(self) -> bool:
        """Whether the model generates tokens one by one; a text encoder does not."""
        return self.setting.arch.causal

    @property
    def read(self) -> npt.NDArray[np.int64]:
        """For models that do not generate, the number of units per request: prompt tokens, images or sounds."""
        return self.setting.arch.stem.units(self.prompt_tokens)

    @property
    def sequences(self) -> npt.NDArray[np.int64]:
        """Number of sequences in the cache of one attention replica, over all pipeline stages."""
        found: npt.NDArray[np.int64] = -(-self.in_flight // self.setting.plan.dp)
        return found

    @property
    def together(self) -> npt.NDArray[np.int64]:
        """Number of waiting prompts that share a pass; 1 if each has its own pass or is computed in decode steps."""
        others = self.in_flight // self.setting.plan.dp - 1
        fitting = self.setting.runtime.prefill_tokens // (self.prompt_tokens - self.cached_tokens)
        together: npt.NDArray[np.int64] = np.maximum(np.minimum(fitting, others), 1)
        return together

    def prefill(self, *, together: bool = False) -> Pass:
        """The prefill pass of one prompt, or, with ``together``, of the prompts that share a pass.

        Cached tokens are not computed again. In an encoder-decoder, the encoder reads the prompt and the decoder
        generates the first token. A text encoder reads all texts in one pass.
        """
        ones = np.ones(len(self.rows), dtype=np.int64)
        prompts = self.together if together else ones
        if self.setting.arch.encoder:
            step = Step(
                batch=prompts, query_tokens=ones, past_tokens=0 * ones, encoder_tokens=self.prompt_tokens, encode=True
            )
        else:
            new = self.prompt_tokens - self.cached_tokens
            batch, arch = prompts if self.generates else self.replica_batch, self.setting.arch
            step = Step(
                batch=batch,
                query_tokens=new,
                past_tokens=self.cached_tokens,
                encoder_tokens=arch.image_tokens * ones if arch.crosses else 0,
                encode=arch.crosses,
                towers=self._reads(batch),
            )
        return Pass(setting=self.setting, step=step, device=self.device, rows=len(self.rows))

    def _reads(self, prompts: npt.NDArray[np.int64]) -> tuple[Step, ...]:
        """Work of the image or audio tower for ``prompts`` prompts."""
        if self.tower_passes is None or self.tower_positions is None:
            return ()
        passes = prompts * self.tower_passes
        return (Step(batch=passes, query_tokens=self.tower_positions, past_tokens=0 * passes),)

    def decode(self) -> Pass:
        """A decode step of all sequences halfway through their answers; for a text encoder, its only pass."""
        if not self.generates:
            return self.prefill()
        ones = np.ones(len(self.rows), dtype=np.int64)
        read = self.prompt_tokens if self.setting.arch.encoder else 0
        past = self.prompt_tokens - read + self.new_tokens // 2
        step = Step(batch=self.replica_batch, query_tokens=ones, past_tokens=past, encoder_tokens=read)
        return Pass(setting=self.setting, step=step, device=self.device, rows=len(self.rows))

    def served(self, in_flight: npt.NDArray[np.int64]) -> Group:
        """A copy with ``in_flight`` concurrent requests per row; rows without requests are left out."""
        kept = in_flight > 0
        plan = self.setting.plan
        return replace(
            self,
            rows=tuple(row for row, keep in zip(self.rows, kept, strict=True) if keep),
            replica_batch=-(-in_flight[kept] // (plan.dp * plan.pp)),
            in_flight=in_flight[kept],
            prompt_tokens=self.prompt_tokens[kept],
            new_tokens=self.new_tokens[kept],
            cached_tokens=self.cached_tokens[kept],
            tower_passes=None if self.tower_passes is None else self.tower_passes[kept],
            tower_positions=None if self.tower_positions is None else self.tower_positions[kept],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """Cost of a group's requests. Arrays have one value per request.

    ``prefill_s`` is the time to the first token. Text encoders generate no tokens, so their ``tpot_s`` is 0.
    """

    group: Group
    prefill: PassTimes
    decode: PassTimes
    prefill_s: Float64Array
    step_s: Float64Array
    tpot_s: Float64Array
    log_halfwidth: Float64Array  # of the time per token; for a text encoder, of its pass
    ttft_log_halfwidth: Float64Array | None  # None if not validated
    taught_log_halfwidth: Float64Array | None  # for ``request_s`` on a taught machine
    situation: str
    memory: DeviceMemory

    @property
    def provenance(self) -> str:
        """Text that says where the times come from.

        Times may come from rates that were fitted to whole runs, for example. For a runtime that was not fitted, the
        text says that the kernels and host time of vLLM were used.
        """
        if self.group.device.taught is not None:
            return self.group.device.taught.provenance
        runtime = self.group.setting.runtime
        fitted = runtime.served or runtime.local or runtime.stack == CORES
        if (where := stack_law.served_where(self.group.setting, self.group.device)) is not None:
            return f"predicted ({self.situation} device; rates of whole runs of {where.stack}, 2024)"
        if image_law.answers(self.group.setting):
            return f"predicted ({self.situation} device; rates of image models in PyTorch)"
        borrowed = "" if fitted else f"; {runtime.title} estimated with vLLM's kernels and host time"
        return f"predicted ({self.situation} device{borrowed})"

    @property
    def request_s(self) -> Float64Array:
        """Seconds from the start of a request's prefill to its last token."""
        result: Float64Array = request_total(self.prefill_s, self.tpot_s, self.group.new_tokens)
        return result

    @property
    def request_log_halfwidth(self) -> Float64Array | None:
        """Log half-width of ``request_s``, if the errors of prefill and decode are fully correlated.

        None if the error of prefill is unknown.
        """
        if not self.group.generates:
            return self.log_halfwidth
        if self.taught_log_halfwidth is not None:
            return self.taught_log_halfwidth
        if self.ttft_log_halfwidth is None:
            return None
        share = self.prefill_s / self.request_s
        result: Float64Array = share * self.ttft_log_halfwidth + (1 - share) * self.log_halfwidth
        return result

    def usd_per_token(self, usd_per_s: float) -> tuple[Float64Array, Float64Array]:
        """Dollars per prompt token and dollars per new token, if all devices together cost ``usd_per_s``.

        The prices of a request's prompt tokens and new tokens add up to its cost. A text encoder has no new tokens.
        """
        group, step_s = self.group, self.step_s if self.group.generates else 0.0 * self.step_s
        read_s, written_s = price_shares(self.request_s, step_s, group.new_tokens)
        each = usd_per_s / group.in_flight
        return each * read_s / group.read, each * written_s / group.new_tokens

    @property
    def tokens_per_s(self) -> Float64Array:
        """New tokens per second, summed over all requests in flight and including the time for prefill.

        For models that do not generate, it is the number of tokens, images or sounds read per second.
        """
        group = self.group
        if not group.generates:
            return group.in_flight * group.read / self.request_s
        result: Float64Array = throughput(self.prefill_s, self.tpot_s, group.new_tokens, group.in_flight)
        return result


def groups_of(requests: Sequence[Request]) -> list[Group]:
    """Groups requests by setting and device.

    Raises:
        ChipwiseError: A request cannot be estimated; the message says why.
    """
    groups, errors = grouped(requests)
    if errors:
        raise next(iter(errors.values()))
    return groups


def grouped(requests: Sequence[Request]) -> tuple[list[Group], dict[int, ChipwiseError]]:
    """Groups requests by setting and device. Also returns an error for each request that cannot be estimated."""
    named: dict[tuple[object, ...], Resolved | ChipwiseError] = {}  # files are read once, not for every row
    together: dict[int, tuple[Resolved, list[int]]] = {}
    errors: dict[int, ChipwiseError] = {}
    for i, request in enumerate(requests):
        names = names_of(request)
        if names not in named:
            try:
                named[names] = resolved(request)
            except ChipwiseError as error:
                named[names] = error
        found = named[names]
        if isinstance(found, ChipwiseError):
            errors[i] = found
        else:
            together.setdefault(id(found), (found, []))[1].append(i)
    groups = []
    for found, rows in together.values():
        plan = found.setting.plan
        try:
            sizes = np.array([_sizes(requests[i], found.setting.arch) for i in rows], dtype=np.int64)
        except SpecError as error:
            errors |= dict.fromkeys(rows, error)
            continue
        seen = bool(found.setting.arch.towers)
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
                tower_passes=sizes[:, 4] if seen else None,
                tower_positions=sizes[:, 5] if seen else None,
            )
        )
    return groups, errors


def _sizes(request: Request, arch: ArchSpec) -> tuple[int, ...]:
    """The sizes of a request, in the order of the columns of a group.

    These are requests in flight, prompt tokens including images, new tokens, cached tokens, tower passes, and positions
    per tower pass. For a classifier, the prompt tokens are the positions of an image or a sound.
    """
    prompt, new = arch.request_of(request.prompt_tokens, request.new_tokens)
    cached, passes, positions = 0 if arch.own_tokens else request.cached_tokens, 0, 0
    if arch.towers:
        (width, height), count = request.image_size, request.images
        if place_of(arch.towers[0]) == SOUND:
            read, count = sound_tokens(arch.towers[0], seconds=request.audio_s), 1
        else:
            read = image_tokens(arch.towers[0], height=height, width=width)
        prompt, passes, positions = prompt + count * read.tokens, count * read.passes, read.positions
    return request.batch, prompt, new, cached, passes, positions


def memory_of(group: Group) -> DeviceMemory:
    """Memory at the end of generation, on the device that needs the most. Kernel times are not computed.

    Raises:
        Unsupported: A block cannot be lowered."""
    key = (group.setting, group.device.kind, *(_sizes_as_bytes(group)))
    if key not in _REMEMBERED:
        prefill, decode = (lower_pass(each.setting, each.step) for each in (group.prefill(), group.decode()))
        if len(_REMEMBERED) >= MOST_REMEMBERED:
            _REMEMBERED.clear()
        _REMEMBERED[key] = _memory(group, prefill, decode)
    return _REMEMBERED[key]


_REMEMBERED: dict[tuple[object, ...], DeviceMemory] = {}  # cache of results: equal arguments need equal memory
MOST_REMEMBERED = 256


def _sizes_as_bytes(group: Group) -> tuple[bytes, ...]:
    sizes = (group.replica_batch, group.in_flight, *(getattr(group, name) for name in SIZES))
    return tuple(b"" if each is None else each.tobytes() for each in sizes)


def _memory(group: Group, prefill: Sequence[PlacedOp], decode: Sequence[PlacedOp]) -> DeviceMemory:
    return device_memory(
        group.setting,
        group.device,
        prefill=prefill,
        decode=decode,
        tokens=group.new_tokens if group.setting.arch.encoder else group.prompt_tokens + group.new_tokens,
        microbatches=group.sequences / group.replica_batch,
        rows=len(group.rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of a group's prefill, of its decode step, and of a pass that waiting prompts share."""

    prefill: PassTimes
    decode: PassTimes
    prompts: PassTimes


def time_groups(groups: Sequence[Group], *, fold: str | None = None) -> list[Kernels | Unsupported]:
    """Kernel times of each group's passes, or the error that says why the device cannot run them."""
    shared = [group for group in groups if group.generates and np.any(group.together > 1)]
    asked = [each for group in groups for each in (group.prefill(), group.decode())]
    try:
        times = time_passes([*asked, *(group.prefill(together=True) for group in shared)], fold=fold)
    except Unsupported as error:
        if len(groups) == 1:
            return [error]
        middle = len(groups) // 2
        return [*time_groups(groups[:middle], fold=fold), *time_groups(groups[middle:], fold=fold)]
    prompts = {id(group): each for group, each in zip(shared, times[len(asked) :], strict=True)}
    return [
        Kernels(prefill=prefill, decode=decode, prompts=prompts.get(id(group), prefill))
        for group, prefill, decode in zip(groups, times[: len(asked) : 2], times[1 : len(asked) : 2], strict=True)
    ]


def cost_groups(groups: Sequence[Group], *, fold: str | None = None) -> list[GroupCost | Unsupported]:
    """Cost of each group, or the error that says why the device cannot run it."""
    known = constants(fold)
    return [
        kernels if isinstance(kernels, Unsupported) else _cost(group, kernels, known, fold)
        for group, kernels in zip(groups, time_groups(groups, fold=fold), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of a group's prefill and decode step, and the seconds by which a prompt delays other requests."""

    prefill: Float64Array
    step: Float64Array
    waited: Float64Array

    @classmethod
    def of(cls, group: Group, kernels: Kernels, known: Constants, fold: str | None = None) -> Seconds:
        """Seconds of ``group``: from a formula fitted to whole runs if one covers the group, else from its kernels."""
        setting = group.setting
        if image_law.answers(setting):
            passed = image_law.pass_times(setting, group.device, group.replica_batch, fold)[0]
            passed = np.maximum(passed, kernels.prefill.busy_s(*CLASSES, scale=0.0))  # bound by the chip's rates
            return cls(prefill=passed, step=passed, waited=passed)
        where = stack_law.served_where(setting, group.device)
        if where is not None:
            law = functools.partial(stack_law.pass_seconds, where=where, rows=len(group.rows), fold=fold)
            prompts = law(kernels.prompts.parts, prompt=True, sequences=0)
            return cls(
                prefill=law(kernels.prefill.parts, prompt=True, sequences=0),
                step=law(kernels.decode.parts, prompt=False, sequences=group.replica_batch),
                waited=prompts / group.together,
            )
        return cls(
            prefill=known.step_s(kernels.prefill, setting, 0),
            step=known.step_s(kernels.decode, setting, group.replica_batch),
            waited=known.waited_s(kernels.prompts, setting, group.together),
        )

    def tpot(self, group: Group, known: Constants) -> Float64Array:
        """Mean seconds between a request's tokens; 0 for text encoders."""
        if not group.generates:
            return np.zeros(len(group.rows))
        return tpot_s(
            self.step,
            self.waited,
            in_flight=np.maximum(group.in_flight / group.setting.plan.dp, 1),
            new_tokens=group.new_tokens,
            share=known.prefill_share if group.setting.runtime.mixes else 1.0,
        )


def _cost(group: Group, kernels: Kernels, known: Constants, fold: str | None) -> GroupCost:
    setting, prefill, decode = group.setting, kernels.prefill, kernels.decode
    seconds = Seconds.of(group, kernels, known, fold)
    passes = max(prefill.situation, decode.situation, key=intervals.SITUATIONS.index)
    situation = intervals.situation_of(passes, setting, group.device, fold)
    least = intervals.class_width(setting, group.device, several=bool(np.any(group.in_flight > 1)), fold=fold)
    tpot = seconds.tpot(group, known)
    waiting = 1 - seconds.step / tpot if group.generates else tpot
    sort = intervals.sorts(setting, group.device, waiting)
    width = intervals.of_runs(known.log_halfwidth, sort, situation, decode.log_halfwidth, least)
    whole_runs = setting.runtime.local or stack_law.served_where(setting, group.device) is not None
    if whole_runs and setting.arch.causal and least is not None:
        width = np.full(len(group.rows), least.tpot)
    if image_law.answers(setting):
        width = image_law.pass_times(setting, group.device, group.replica_batch, fold)[1]
    whole = None
    first = None if least is None or least.ttft is None else np.full(len(group.rows), least.ttft)
    teaching = group.device.taught
    if teaching is not None and not teaching.rows and first is None:
        first = np.maximum(width, UNCHECKED_PROMPT)
    if teaching is not None and teaching.rows:
        answers = corrected(teaching, prefill, seconds.prefill, setting, "prefill")
        steps = corrected(teaching, decode, seconds.step, setting, "decode") if group.generates else answers
        prefill, decode = answers.times, steps.times
        waited = seconds.waited * answers.found.seconds / seconds.prefill
        seconds = Seconds(prefill=answers.found.seconds, step=steps.found.seconds, waited=waited)
        tpot = seconds.tpot(group, known)
        one = np.ones(len(tpot))
        share = seconds.prefill / request_total(seconds.prefill, tpot, group.new_tokens) if group.generates else one
        delayed = 1 - seconds.step / tpot if group.generates else one
        first, width, whole = (
            Z90 * deviation(teaching, [(each, answers.found), (1 - each, steps.found)])
            for each in (one, delayed, share + (1 - share) * delayed)
        )
    return GroupCost(
        group=group,
        prefill=prefill,
        decode=decode,
        prefill_s=seconds.prefill,
        step_s=seconds.step,
        tpot_s=tpot,
        log_halfwidth=width,
        ttft_log_halfwidth=first,
        taught_log_halfwidth=whole,
        situation=situation,
        memory=_memory(group, prefill.parts, decode.parts),
    )
