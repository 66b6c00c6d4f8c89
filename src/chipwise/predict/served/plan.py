"""Plans for spreading a model over devices, and checks that a plan suits the model's sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import MixtureOfExperts

NODE_DEVICES = 8
"""Number of directly linked devices in a machine of the published tables."""


def whole_number(value: object, field: str) -> None:
    """Checks that ``value`` is a whole number.

    Raises:
        SpecError: ``value`` is not a whole number, for example 2.0 or text.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise SpecError(f"must be a whole number, not {value!r}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees of parallelism.

    ``tp`` devices share each matrix of one attention replica. ``dp`` is the number of attention replicas: in a mixture
    of experts they share the experts (attention data parallelism), and in a dense model they share nothing. ``ep`` is
    the number of groups among which the experts are divided; each group splits its experts over ``tp * dp / ep``
    devices. ``pp`` is the number of pipeline stages.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for field in ("tp", "pp", "ep", "dp"):
            value = getattr(self, field)
            whole_number(value, field)
            if not 1 <= value <= 1024:
                raise SpecError(f"must be from 1 to 1024, not {value}", field=field)
        if (self.tp * self.dp) % self.ep:
            raise SpecError(
                f"{self.ep} groups of experts do not divide {self.tp * self.dp} devices (tp {self.tp} x dp {self.dp})",
                field="ep",
            )

    @property
    def stage_devices(self) -> int:
        """Number of devices of one pipeline stage."""
        return self.tp * self.dp

    @property
    def devices(self) -> int:
        """Number of devices in all pipeline stages."""
        return self.tp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Number of devices over which each expert's matrices are split."""
        return self.stage_devices // self.ep


def node_plan(tp: int, dp: int, ep: int) -> tuple[int, int, int]:
    """The true ``tp``, ``dp`` and ``ep`` of a row in the published tables.

    The tables count eight devices with tp 8 and ep 8 as 64 devices. But the same runs also appear with eight devices
    and equal times, and no machine in the tables links 64 devices.
    """
    if ep > 1 and tp * dp == ep * ep > NODE_DEVICES:
        return (tp // ep, dp, ep) if dp == 1 else (tp, dp // ep, ep)
    return tp, dp, ep


def check_plan(arch: ArchSpec, plan: Plan) -> None:
    """Checks that every matrix splits evenly.

    Raises:
        SpecError: A matrix does not split evenly; the message says why.
    """
    experts = 0
    for layer in (*arch.layers, *arch.encoder, *arch.stem.own_layers()):
        heads = getattr(layer.attention, "heads", plan.tp)
        if heads % plan.tp:
            raise SpecError(
                f"{plan.tp} devices do not divide the {heads} heads of {arch.name}; {_divisors(heads)} do", field="tp"
            )
        block = layer.ffn.shared if isinstance(layer.ffn, MixtureOfExperts) else layer.ffn
        if block is not None and block.width % plan.tp:
            raise SpecError(f"{plan.tp} devices do not divide the FFN width {block.width} of {arch.name}", field="tp")
        if isinstance(layer.ffn, MixtureOfExperts):
            experts = max(experts, layer.ffn.experts)
    if plan.ep > 1 and not experts:
        raise SpecError(f"{arch.name} has no experts to divide among {plan.ep} groups", field="ep")
    if plan.ep > max(experts, 1):
        raise SpecError(f"{arch.name} has {experts} experts, fewer than {plan.ep} groups", field="ep")
    if plan.pp > len(arch.layers):
        raise SpecError(f"{arch.name} has {len(arch.layers)} layers, fewer than {plan.pp} stages", field="pp")


def _divisors(number: int) -> str:
    return ", ".join(str(2**i) for i in range(10) if number % 2**i == 0)
