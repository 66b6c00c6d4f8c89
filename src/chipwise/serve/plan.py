"""Plan: how a model is spread over devices, and whether it can be."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees of parallelism.

    ``tp`` devices share every matrix of a replica of attention; ``dp`` such replicas share the experts of a
    mixture-of-experts model (attention data parallelism) or, in a dense model, nothing; ``ep`` is into how many groups
    the experts are dealt out (each group then splits its experts over ``tp * dp / ep`` devices); ``pp`` stages follow
    one another.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for field in ("tp", "pp", "ep", "dp"):
            value = getattr(self, field)
            if not 1 <= value <= 1024:
                raise SpecError(f"must be from 1 to 1024, not {value}", field=field)
        if (self.tp * self.dp) % self.ep:
            raise SpecError(
                f"{self.ep} groups of experts do not divide {self.tp * self.dp} devices (tp {self.tp} x dp {self.dp})",
                field="ep",
            )

    @property
    def stage_devices(self) -> int:
        """Devices that hold one pipeline stage together."""
        return self.tp * self.dp

    @property
    def devices(self) -> int:
        """All devices."""
        return self.tp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Devices over which each expert's matrices are split."""
        return self.stage_devices // self.ep
