"""Chooses the most informative measurements: greedy D-optimal design under the posterior of a fit.

Each chosen measurement shrinks the covariance of the logarithms, and so the variance of the others; the next is the one
whose prediction is then the least certain.

References:
    Krause, Singh and Guestrin 2008, Near-optimal sensor placements in Gaussian processes, J. Mach. Learn. Res. 9:235.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.deploy.teach.observations import MeasuredRow, Observations, Quantity, observe
from chipwise.deploy.teach.posterior import Posterior, label_matrix, linearise, smooth_part
from chipwise.errors import ChipwiseError, counted
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published import families
from chipwise.model.published.read import resolve
from chipwise.predict.served.estimate import fitting_requests
from chipwise.predict.served.groups import grouped, memory_of

COUNT = 10
MOST_MODELS = 40
SIZES = 6.0  # largest ratio of a proposed model's size to those in the table
REQUESTS = ((128, 128), (1024, 128))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An informative measurement, with its expected value."""

    row: MeasuredRow
    quantity: str
    expected_s: float
    deviation: float  # standard deviation of ln(measured / expected), before any proposal is measured

    def low_high(self) -> tuple[float, float]:
        """The ends of the 90 % interval of the expected seconds."""
        factor = float(np.exp(Z90 * self.deviation))
        return self.expected_s / factor, self.expected_s * factor

    def sentence(self) -> str:
        """The measurement in words."""
        row = self.row
        form = f", {row.weights}" if row.weights else ""
        name = f"the model of line {row.number}" if row.number else row.name
        tokens = f"{row.prompt_tokens} prompt and {counted(row.new_tokens, 'new token')}"
        return f"{name}{form}, {row.runtime or 'the usual runtime'}: {tokens}, batch {row.batch}"


def most_telling(slopes: Float64Array, covariance: Float64Array, noise: Float64Array, count: int) -> list[int]:
    """Indices of the most informative measurements, in order.

    Args:
        slopes: Derivatives of each measurement by the logarithms, (n, size).
        covariance: Of the logarithms, (size, size).
        noise: Variance of each measurement by itself, (n,).
        count: How many to choose at most.
    """
    left = covariance.copy()
    chosen: list[int] = []
    for _ in range(min(count, len(slopes))):
        spread = slopes @ left
        gain = (spread * slopes).sum(axis=1) / noise
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        row = spread[best]
        left = left - np.outer(row, row) / (noise[best] + row @ slopes[best])
    return chosen


def propose(
    posterior: Posterior,
    rows: list[MeasuredRow],
    device: DeviceProfile,
    *,
    candidates: list[MeasuredRow] | None = None,
    widen: float = 1.0,
) -> list[Proposal]:
    """The ``COUNT`` measurements of ``candidates`` (models like those of the table, unless given) that teach most.

    Args:
        posterior: What is known.
        rows: The table's.
        device: The data sheet.
        candidates: What may be measured.
        widen: What standard deviations are multiplied by.
    """
    among = candidates if candidates is not None else usual_candidates(rows, device)
    quantity = _usual_quantity(rows)
    asked, _ = observe(among, device, quantities=[quantity])  # models that the machine cannot run are not proposed
    if not len(asked):
        return []
    chosen = most_telling(*_uncertain(posterior, asked), COUNT)
    logs, deviations = posterior.predict(asked)
    return [
        Proposal(
            row=among[int(asked.rows[i])],
            quantity=asked.quantities[i],
            expected_s=float(np.exp(logs[i])),
            deviation=widen * float(deviations[i]),
        )
        for i in chosen
    ]


def _uncertain(posterior: Posterior, asked: Observations) -> tuple[Float64Array, Float64Array, Float64Array]:
    frame, strengths = posterior.frame, posterior.strengths
    smooth = smooth_part(frame, asked, strengths)
    at = linearise(frame, asked, posterior.theta, smooth, label_matrix(asked, frame.labels))
    noise = strengths.noise**2 + np.maximum(strengths.amplitude**2 - at.missing, 0.0)
    return at.slopes, posterior.covariance, noise


def remeasure(posterior: Posterior, drift_covariance: Float64Array, rows: list[MeasuredRow]) -> list[MeasuredRow]:
    """The rows to measure again on another day: those most informative about drift."""
    seen = posterior.frame.seen
    slopes, _, noise = _uncertain(posterior, seen)
    agree = posterior.weights > 0.5
    order = np.flatnonzero(agree) if agree.sum() >= COUNT else np.arange(len(seen))
    chosen = most_telling(slopes[order], drift_covariance, 2 * noise[order], min(4 * COUNT, len(order)))
    found = dict.fromkeys(int(seen.rows[order[i]]) for i in chosen)
    return [rows[i] for i in list(found)[:COUNT]]


def _usual_quantity(rows: list[MeasuredRow]) -> Quantity:
    """The quantity that most rows have, so that proposals are measured like the table."""
    counts: dict[Quantity, int] = {}
    for row in rows:
        for name in row.measured():
            counts[name] = counts.get(name, 0) + 1
    return max(counts, key=lambda name: counts[name], default="total")


def usual_candidates(rows: list[MeasuredRow], device: DeviceProfile) -> list[MeasuredRow]:
    """Bundled models similar to the table's in kind and size, and the table's own, in its runtimes and formats.

    Models that do not fit in the device's memory are left out.
    """
    own: dict[str, ArchSpec] = {}
    lines: dict[str, MeasuredRow] = {}
    for row in rows:
        if row.identity not in own:
            own[row.identity] = row.model if isinstance(row.model, ArchSpec) else resolve(row.model)
            lines[row.identity] = row
    kinds = {_kind(arch) for arch in own.values()}
    sizes = [arch.parameters() for arch in own.values()]
    least, most = min(sizes) / SIZES, max(sizes) * SIZES
    measured = {_asked(row) for row in rows}
    named: list[str] = []
    for name in families.names():
        arch = resolve(name)
        if name not in own and _kind(arch) in kinds and least <= arch.parameters() <= most:
            named.append(name)
    step = max(1, len(named) // MOST_MODELS)
    every: list[tuple[int, str | ArchSpec]] = [(0, name) for name in named[::step]]
    models = [*every, *((row.number, row.model) for row in list(lines.values())[: MOST_MODELS // 2])]
    settings = list(dict.fromkeys((row.runtime, row.weights, row.kv, row.variant) for row in rows))[:4]
    lengths = list(dict.fromkeys([*((row.prompt_tokens, row.new_tokens) for row in rows[:1]), *REQUESTS]))
    found = []
    for number, model in models:
        for runtime, weights, kv, variant in settings:
            for prompt, new in lengths:
                found.append(
                    MeasuredRow(
                        number=number, model=model, runtime=runtime, weights=weights, kv=kv, variant=variant,
                        prompt_tokens=prompt, new_tokens=new,
                    )
                )  # fmt: skip
    return _fitting([row for row in found if _asked(row) not in measured], device)


def _asked(row: MeasuredRow) -> tuple[object, ...]:
    """Identity of a measurement."""
    return row.identity, row.runtime, row.weights, row.kv, row.variant, row.prompt_tokens, row.new_tokens, row.batch


def _fitting(rows: list[MeasuredRow], device: DeviceProfile) -> list[MeasuredRow]:
    groups, _ = grouped([row.request(device, "total") for row in rows])
    kept: list[int] = []
    for group in groups:
        try:
            fits = fitting_requests(group, memory_of(group))
        except ChipwiseError:
            continue
        kept += [row for row, held in zip(group.rows, fits.tolist(), strict=True) if held]
    return [rows[i] for i in sorted(kept)]


def _kind(arch: ArchSpec) -> str:
    return "encoder-decoder" if arch.encoder else "decoder" if arch.causal else "encoder"
