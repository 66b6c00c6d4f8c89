"""Cost of ranking candidates, together and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.api.predictions import estimate
from chipwise.core.arguments import public
from chipwise.errors import SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.ranking.form import with_candidates
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Predicted

COUNTS = (1, 8, 32, 128, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCost:
    """Predicted seconds of ranking some candidates for one request."""

    candidates: int
    together_s: Predicted  # the history once, all candidates in one pass
    apart_s: Predicted  # as many requests of one candidate, in one batch
    memory_bytes: float  # of the device, for the pass with all of them

    @property
    def times_cheaper(self) -> float:
        """Seconds apart over seconds together."""
        return self.apart_s.value / self.together_s.value


@public
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
        device: A data sheet's name, alias or file; ``here`` is this machine, as calibrated for ranking.
        counts: Numbers of candidates.
        runtime: As in :func:`chipwise.estimate`.
        weights: Weight format; the winner's own or the device's by default.
        shards: Devices among which the tables are dealt out; the model's own unless given. Each of them answers
            requests of its own.

    Raises:
        SpecError: No counts, or one below 1.
        Unsupported: The model ranks nothing, or the device has no rate for something.
        DoesNotFit: Too little memory; the message says by how much.
    """
    arch = model if isinstance(model, ArchSpec) else resolve(model)
    stem: object = arch.stem
    if not isinstance(stem, RankingStem):
        raise Unsupported(f"{arch.name} does not rank candidates")
    if not counts:
        raise SpecError("name at least one number of candidates", field="counts")
    if shards is not None:
        arch = replace(arch, stem=replace(stem, shards=shards))
    rows = []
    for count in counts:
        together, apart = (
            estimate(with_candidates(arch, each), device=device, runtime=runtime, weights=weights, batch=batch)
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
