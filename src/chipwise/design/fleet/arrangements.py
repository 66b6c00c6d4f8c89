"""Arrangements: the ways to run one replica that a question allows, as a list or as a search space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from chipwise.core.dtypes import DType
from chipwise.design.fleet.question import FleetQuestion, device_key
from chipwise.design.strategies.strategy import Rows
from chipwise.errors import ChipwiseError, SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import default_runtime
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.model.kinds.table import form_of
from chipwise.model.published.read import resolve
from chipwise.predict.load.policy import Speculation
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to run one replica; everything that :class:`Request` needs except its sizes."""

    deployment: Deployment
    speculation: Speculation | None = None

    @property
    def device(self) -> str:
        """Name of the device."""
        return str(self.deployment.device)

    @property
    def runtime(self) -> str:
        """Name of the runtime."""
        return str(self.deployment.runtime)

    @property
    def weights(self) -> str:
        """Format of the matrices."""
        return str(self.deployment.weights)

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.deployment.devices

    def request(self, question: FleetQuestion) -> Request:
        """A typical request of ``question`` to this arrangement, with twelve requests in flight."""
        shares = np.array([each.share for each in question.classes])
        prompt, new = (
            round(float(np.average([getattr(each, name) for each in question.classes], weights=shares)))
            for name in ("prompt_tokens", "new_tokens")
        )
        return Request(
            model=question.model,
            deployment=replace(self.deployment, kv=question.kv),
            batch=12 * self.deployment.pp * self.deployment.dp,
            prompt_tokens=max(prompt, 1),
            new_tokens=max(new, 1),
        )

    @property
    def key(self) -> str:
        """Key of the arrangement in files."""
        own = self.deployment
        parts = [f"{own.device}/{own.runtime}/{own.weights}/tp{own.tp}/pp{own.pp}"]
        parts += [f"{name}{value}" for name, value in (("ep", own.ep), ("dp", own.dp)) if value > 1]
        if self.speculation is not None:
            drafts = self.speculation
            parts.append(f"{drafts.draft or 'ngram'}:{drafts.drafted}:{drafts.acceptance:g}")
        return "/".join(parts)

    @property
    def spread(self) -> str:
        """Parallelism and draft model of a replica: ``TP 4, EP 4, drafts of Qwen3-0.6B x 4``."""
        drafts = () if self.speculation is None else (self.speculation.describe(),)
        return ", ".join((self.deployment.spread, *drafts))


class ArrangementSpace:
    """Every arrangement that a question allows, as rows of eight integers; some rows are invalid.

    Args:
        question: The choices.

    Raises:
        UnknownName: No data sheet describes a device.
    """

    def __init__(self, question: FleetQuestion) -> None:
        self.question = question
        self.devices = _devices(question)
        self.mixture, self.ranker, self.stem = _sort(question.model)
        whole = (*question.ep,) if question.ep else (1, 0) if self.mixture else (1,)
        sheets = self.devices.values()
        formats = tuple(dict.fromkeys(name for device in sheets for name in _formats(question, device)))
        runtimes = question.runtimes or tuple(dict.fromkeys(map(self._runtime, sheets)))
        drafts: tuple[Speculation | None, ...] = (None, *question.speculation)
        self.axes: tuple[tuple[Any, ...], ...] = (
            tuple(self.devices), runtimes, formats, question.tp, question.pp, whole, question.dp, drafts,
        )  # fmt: skip

    @property
    def cardinalities(self) -> Rows:
        """Number of values of each integer in a row, (8,)."""
        return np.array([len(axis) for axis in self.axes], np.int64)

    def _runtime(self, device: DeviceProfile) -> str:
        return default_runtime(device, images=self.stem, one_user=False)

    def arrangement(self, row: Rows) -> Arrangement | None:
        """The arrangement of a row, (8,); None if it is invalid or a duplicate."""
        return self._of(tuple(axis[int(i)] for axis, i in zip(self.axes, row, strict=True)))

    def _of(self, values: tuple[Any, ...]) -> Arrangement | None:
        name, runtime, weights, tp, pp, ep, dp, drafts = values
        question, device = self.question, self.devices[name]
        if not question.runtimes and runtime != self._runtime(device):
            return None
        if weights not in _formats(question, device) or tp * pp * dp > question.most_devices:
            return None
        if not self.mixture and (ep != 1 or (dp > 1 and not self.ranker)):
            return None  # such copies share nothing, so they count as replicas
        groups = ep or tp * dp  # 0: one on each device
        if not ep and groups == 1:
            return None
        if (tp * dp) % groups or (runtime == "vllm" and groups not in (1, tp * dp)):
            return None
        return Arrangement(
            deployment=Deployment(device=name, runtime=runtime, weights=weights, tp=tp, pp=pp, ep=groups, dp=dp),
            speculation=drafts,
        )

    def __iter__(self) -> Iterator[Arrangement]:
        listed: dict[Arrangement, None] = {}
        for values in product(*self.axes):
            found = self._of(values)
            if found is not None:
                listed[found] = None
        return iter(listed)


def _devices(question: FleetQuestion) -> dict[str, DeviceProfile]:
    """The devices to choose from, by the plan's names: the named ones, or all with a price."""
    if question.devices:
        return {device_key(name): datasheet.load(name) for name in question.devices}
    priced = {name: sheet for name in datasheet.names() if (sheet := datasheet.load(name)).price is not None}
    return priced | {device_key(name): datasheet.load(name) for name in question.prices}


def _formats(question: FleetQuestion, device: DeviceProfile) -> tuple[str, ...]:
    return question.weights or ("bf16", *(("fp8",) if DType.FP8 in device.peak_flops_per_s else ()))


def has_experts(arch: ArchSpec) -> bool:
    """Whether any layer is a mixture of experts."""
    return any(isinstance(layer.ffn, MixtureOfExperts) for layer in arch.layers)


def copies_share(arch: ArchSpec) -> bool:
    """Whether data-parallel copies share anything: experts, or a ranker's tables. Others are replicas."""
    return has_experts(arch) or form_of(arch).tables_shared


def positions_of(arch: ArchSpec) -> int | None:
    """Positions of a model for the text of a request; None if requests are images or sound."""
    return arch.max_tokens if arch.reads == "token" and arch.sound_s is None else None


def check_positions(arch: ArchSpec, prompt: int, new: int, *, field: str) -> None:
    """Checks that a request fits into the model's positions.

    Raises:
        SpecError: The request is too long.
    """
    most = positions_of(arch)
    if most is not None and prompt + new > most:
        asked = f"{prompt:,} + {new:,}" if new else f"{prompt:,}"
        raise SpecError(f"{asked} tokens exceed the context of {arch.name}, {most:,}", field=field)


@lru_cache(maxsize=64)
def _sort(model: str) -> tuple[bool, bool, bool]:
    """Whether copies of a model share experts; whether they share tables; whether a request is one whole input."""
    try:
        arch = resolve(model)
    except ChipwiseError:
        return False, False, False  # reported for each arrangement, with the reason
    return has_experts(arch), form_of(arch).tables_shared, arch.reads != "token"
