"""Predicts the cost of ranking candidates: all in one pass, and each in a pass of its own."""

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
    """Predicted seconds to rank the candidates of one request: all in one pass, and each in a pass of its own."""

    candidates: int
    together_s: Predicted  # one request: the history is read once, with all candidates in the same pass
    apart_s: Predicted  # one batch with a request of its own for each candidate
    memory_bytes: float  # device memory for the pass with all candidates

    @property
    def times_cheaper(self) -> float:
        """Seconds with one pass per candidate, divided by the seconds with one pass for all."""
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
    """Predicts for each number of candidates the cost of ranking all in one pass, and each in its own pass.

    Args:
        model: A winner's folder, a spec file, or an :class:`ArchSpec` that ranks candidates.
        device: A data sheet's name, alias or file; ``here`` is this machine, calibrated for ranking.
        counts: Numbers of candidates for which to predict the cost.
        runtime: The runtime, as for :func:`chipwise.estimate`.
        weights: Weight format. Default: that of the winner, else the device's usual one.
        shards: Number of devices over which the embedding tables are sharded; each device serves its own requests.
            Default: as the model states.

    Raises:
        SpecError: ``counts`` is empty, or one of them is below 1.
        Unsupported: The model does not rank candidates, or the device's data sheet lacks a rate.
        DoesNotFit: The device has too little memory; the message says how much is missing.
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
