"""Lists the arrangements that a question allows: ways to run one replica of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from chipwise.core.dtypes import DType
from chipwise.design.fleet.question import FleetQuestion, device_key
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

MOST_ARRANGEMENTS = 20_000  # predicting this many takes a few minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to run a replica: its deployment (device, runtime, formats, parallelism) and speculative decoding."""

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
        """Format of the weight matrices."""
        return str(self.deployment.weights)

    @property
    def devices(self) -> int:
        """Number of devices in one replica."""
        return self.deployment.devices

    def request(self, question: FleetQuestion) -> Request:
        """A request in this arrangement, with the question's mean numbers of prompt tokens and new tokens.

        Twelve requests are in flight for each pipeline stage of each data-parallel copy.
        """
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
        """Name of the arrangement in plan files."""
        own = self.deployment
        parts = [f"{own.device}/{own.runtime}/{own.weights}/tp{own.tp}/pp{own.pp}"]
        parts += [f"{name}{value}" for name, value in (("ep", own.ep), ("dp", own.dp)) if value > 1]
        if self.speculation is not None:
            drafts = self.speculation
            parts.append(f"{drafts.draft or 'ngram'}:{drafts.drafted}:{drafts.acceptance:g}")
        return "/".join(parts)

    @property
    def spread(self) -> str:
        """Parallelism and draft model of a replica as text, such as ``TP 4, EP 4, drafts of Qwen3-0.6B x 4``."""
        drafts = () if self.speculation is None else (self.speculation.describe(),)
        return ", ".join((self.deployment.spread, *drafts))


def arrangements_of(question: FleetQuestion, devices: Mapping[str, DeviceProfile]) -> list[Arrangement]:
    """Every arrangement on ``devices`` that a question allows.

    Raises:
        SpecError: There are more than ``MOST_ARRANGEMENTS``.
    """
    mixture, ranker, stem = _sort(question.model)
    experts = question.ep or ((1, 0) if mixture else (1,))  # 0: expert parallelism over all devices of the replica
    found: dict[Arrangement, None] = {}
    for name, device in devices.items():
        runtimes = question.runtimes or (default_runtime(device, images=stem, one_user=False),)
        formats, drafts = _formats(question, device), (None, *question.speculation)
        for runtime, weights, tp, pp, ep, dp, speculation in product(
            runtimes, formats, question.tp, question.pp, experts, question.dp, drafts
        ):
            groups = ep or tp * dp
            if tp * pp * dp > question.most_devices or (not ep and groups == 1):
                continue
            if not mixture and (ep != 1 or (dp > 1 and not ranker)):
                continue  # copies that share nothing are counted as replicas
            if (tp * dp) % groups or (runtime == "vllm" and groups not in (1, tp * dp)):
                continue
            deployment = Deployment(device=name, runtime=runtime, weights=weights, tp=tp, pp=pp, ep=groups, dp=dp)
            found[Arrangement(deployment=deployment, speculation=speculation)] = None
    if len(found) > MOST_ARRANGEMENTS:
        raise SpecError(
            f"{len(found):,} arrangements are allowed, but at most {MOST_ARRANGEMENTS:,} can be evaluated; name fewer "
            "devices, runtimes, formats or degrees",
            field="devices",
        )
    return list(found)


def devices_of(question: FleetQuestion) -> dict[str, DeviceProfile]:
    """The devices to choose from, by name: those that the question names, or all devices that have a price.

    Raises:
        UnknownName: No data sheet describes a device.
    """
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
    """Whether data-parallel copies of a model share experts or a ranker's tables. If not, they count as replicas."""
    return any(_shared(arch))


def _shared(arch: ArchSpec) -> tuple[bool, bool]:
    """Whether data-parallel copies share experts, and whether they share a ranker's tables."""
    return has_experts(arch), form_of(arch).tables_shared


def check_positions(arch: ArchSpec, prompt: int, new: int, *, field: str) -> None:
    """Checks that a request's prompt and new tokens fit into the model's context.

    Raises:
        SpecError: The request is too long.
    """
    if arch.context is not None and prompt + new > arch.context:
        asked = f"{prompt:,} + {new:,}" if new else f"{prompt:,}"
        raise SpecError(f"{asked} tokens exceed the context of {arch.name}, {arch.context:,} tokens", field=field)


@lru_cache(maxsize=64)
def _sort(model: str) -> tuple[bool, bool, bool]:
    """Whether data-parallel copies share experts, whether they share tables, and whether the model reads no tokens."""
    try:
        arch = resolve(model)
    except ChipwiseError:
        return False, False, False  # the reason is reported for each arrangement
    return *_shared(arch), arch.reads != "token"
