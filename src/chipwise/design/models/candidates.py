"""Cost of ranking candidates, together and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.design.models.this_machine import estimate_on
from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request

COUNTS = (1, 8, 32, 128, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCost:
    """Predicted seconds of ranking some candidates for one request."""

    candidates: int
    together_s: Predicted  # one request: the history once, all candidates in the same pass
    apart_s: Predicted  # a batch of requests with one candidate each
    memory_bytes: float  # device memory for the pass with all candidates

    @property
    def times_cheaper(self) -> float:
        """Ratio of the seconds one by one to the seconds together."""
        return self.apart_s.value / self.together_s.value


def candidates(
    model: str | Path | ArchSpec,
    *,
    device: str | Path | DeviceProfile = "h100-sxm",
    counts: Sequence[int] = COUNTS,
    runtime: str | None = None,
    weights: str | None = None,
    shards: int | None = None,
) -> tuple[CandidateCost, ...]:
    """Predicts the cost of ranking several numbers of candidates on a device, together and one by one.

    Args:
        model: A winner's folder, a spec file, or an :class:`ArchSpec` that ranks candidates.
        device: A data sheet's name, alias or file; ``here`` is this machine, calibrated for ranking.
        counts: Numbers of candidates.
        runtime: See :func:`chipwise.estimate`.
        weights: Weight format. Default: the winner's own, else the device's usual one.
        shards: Devices over which the tables are sharded; each answers its own requests. Default: the model's own
            number.

    Raises:
        SpecError: There are no counts, or one is below 1.
        Unsupported: The model does not rank candidates, or the device lacks a rate.
        DoesNotFit: There is too little memory; the message says by how much.
    """
    arch = model if isinstance(model, ArchSpec) else resolve(model)
    if not counts:
        raise SpecError("name at least one number of candidates", field="counts")
    arch = with_candidates(arch, counts[0])
    if shards is not None:
        arch = replace(arch, stem=replace(arch.stem_as(RankingStem), shards=shards))
    served = Deployment(device=device, runtime=runtime, weights=weights)
    rows = []
    for count in counts:
        together, apart = (
            estimate_on(Request(model=with_candidates(arch, each), deployment=served, batch=batch))
            for each, batch in ((count, 1), (1, count))
        )
        rows.append(
            CandidateCost(
                candidates=count,
                together_s=together.metrics["ttft_p50"],
                apart_s=apart.metrics["ttft_p50"],
                memory_bytes=together.peak_memory_bytes,
            )
        )
    return tuple(rows)
