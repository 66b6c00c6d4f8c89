"""Simulates one model under load, given its deployment, scheduling rules and pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from chipwise.core import units
from chipwise.core.fields import whole_number
from chipwise.design.fleet.arrangements import copies_share
from chipwise.design.fleet.offered_load import OfferedLoad
from chipwise.design.fleet.question import above_zero, rate_of
from chipwise.design.fleet.simulating import ReplicaGroup, Simulation, simulated
from chipwise.errors import SpecError, counted
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.load.disturbances import UNDISTURBED, Disturbances
from chipwise.predict.load.load import Load, RequestClass
from chipwise.predict.load.policy import NGRAM, Policy, Speculation, policy_of
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, Resolved, resolved

MOST_REPLICAS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Changes to the runtime's scheduling rules; fields are arguments of :func:`chipwise.simulate`."""

    max_tokens: int | None = None
    max_sequences: int | None = None
    prefix_cache: bool = True
    timeout_s: float | None = None
    request_s: float = 0.0
    step_scale: float = 1.0
    drafted: int = 0
    acceptance: float = 0.7
    draft: str | None = None
    batching: Literal["tokens", "requests"] = "tokens"

    def __post_init__(self) -> None:
        if not 0 <= self.acceptance <= 1:
            raise SpecError(f"must be from 0 to 1, not {self.acceptance:g}", field="acceptance")
        if not 0.01 <= self.step_scale <= 100:
            raise SpecError(f"must be from 0.01 to 100, not {self.step_scale:g}", field="step_scale")
        if self.draft is not None and not self.drafted:
            raise SpecError("needs `drafted` too: the number of tokens to draft in each step", field="draft")

    def policy(self, found: Resolved) -> Policy:
        """The runtime's scheduling rules for the model, with these changes.

        Raises:
            SpecError: ``batching`` is ``requests``, but the model generates text.
        """
        arch, padded = found.setting.arch, self.batching == "requests"
        if padded and arch.causal:
            raise SpecError(
                f"{arch.name} generates text, so it is always batched by tokens; batching by requests is only for "
                "encoders",
                field="batching",
            )
        own = policy_of(found.setting.runtime, generates=arch.causal, stem=not arch.reads_tokens)
        if padded:
            own = replace(own, padded=True, most_tokens=2**20, most_sequences=32)
        if self.drafted:
            draft = None if self.draft == NGRAM else self.draft
            speculation = Speculation(drafted=self.drafted, acceptance=self.acceptance, draft=draft)
            own = replace(own, speculation=speculation)
        return replace(
            own,
            most_tokens=own.most_tokens if self.max_tokens is None else self.max_tokens,
            most_sequences=own.most_sequences if self.max_sequences is None else self.max_sequences,
            timeout_s=self.timeout_s,
            prefix_cache=own.prefix_cache and self.prefix_cache,
            request_s=self.request_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Number of replicas, and a separate decode pool; fields are arguments of :func:`chipwise.simulate`."""

    replicas: int = 1
    decode_device: str | None = None
    decode_replicas: int = 1
    decode_tp: int = 1
    link: str | None = None

    def __post_init__(self) -> None:
        whole_number("decode_tp", self.decode_tp, most=1024)
        for name in ("replicas", "decode_replicas"):
            whole_number(name, getattr(self, name), most=MOST_REPLICAS)
        if self.decode_device is None:
            for name, default in (("link", None), ("decode_replicas", 1), ("decode_tp", 1)):
                if getattr(self, name) != default:
                    raise SpecError("applies only to separate prefill and decode; set decode_device too", field=name)

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth from the prefill to the decode pool, in bytes per second; None if not given."""
        if self.link is None:
            return None
        return above_zero(units.parse_field(self.link, "bandwidth", "link"), "link")

    def decoding(self, first: ReplicaGroup, *, clients: bool) -> ReplicaGroup | None:
        """The decode pool; None if prefill and decode are not separate.

        Raises:
            SpecError: The load comes from clients.
        """
        if self.decode_device is None:
            return None
        if clients:
            raise SpecError("separate prefill and decode cannot serve a closed loop of clients", field="decode_device")
        request = first.request.but(device=self.decode_device, tp=self.decode_tp, pp=1)
        return replace(first, request=request, replicas=self.decode_replicas)


def simulate_model(
    model: str | Path | ArchSpec,
    deployment: Deployment,
    load: OfferedLoad | Load,
    *,
    scheduling: Scheduling,
    pools: Pools,
    by: Disturbances = UNDISTURBED,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Simulates ``model`` under ``load``; arguments and errors are those of :func:`chipwise.simulate`."""
    link_bytes_per_s = pools.link_bytes_per_s
    offered = load if isinstance(load, OfferedLoad) else None
    batch = 12 * deployment.pp * deployment.dp
    request = Request(model=model, deployment=deployment, batch=batch)
    found = resolved(request)
    arch, policy = found.setting.arch, scheduling.policy(found)
    if deployment.dp > 1 and not copies_share(arch):
        said = f"dp copies of {arch.name} share neither experts nor tables; set replicas={deployment.dp} instead"
        raise SpecError(said, field="dp")
    each = RequestClass().as_read(arch) if offered is None else offered.requests_of(arch)
    request = replace(request, prompt_tokens=each.prompt_tokens, new_tokens=max(each.new_tokens, 1))
    loads = [load] if isinstance(load, Load) else load.loads(arch)
    first = ReplicaGroup(request=request, policy=policy, replicas=pools.replicas, step_scale=scheduling.step_scale)
    return simulated(
        loads,
        first,
        apart=pools.decoding(first, clients=loads[0].clients is not None),
        link_bytes_per_s=link_bytes_per_s,
        closed=offered is None or offered.closed,
        asked_per_s=None if offered is None or offered.rate is None else rate_of(offered.rate),
        about_load=counted(len(loads[0]), "request") if offered is None else offered.describe(arch, loads[0]),
        by=by,
        on_progress=on_progress,
    )
