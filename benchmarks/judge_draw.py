"""The sub-networks of the ranking benchmark, sampled with a seed, and their properties without training.

Designs are drawn uniformly from the space, all with one weight format (it changes the price and hardly the quality).
Those predicted to be within the search's limits are kept; a limit on a tail is asked of the median at half, because
predicted tails say how busy the machine was when it was calibrated. Half of the sub-networks are spread over latency:
the designs are sorted by predicted decode latency, cut into equal parts, and one is drawn from each. The other half is
drawn from the band: the designs within 5 % of the median latency. Whatever lies within 5 % counts as the band.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chipwise.design.limits import Constraint
from chipwise.design.phases.screening import excess
from chipwise.design.run.spec import RunSpec
from chipwise.design.targets.cost_model import CostModel
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.walk.lower import lower
from chipwise.training.data.tokens import TokenData
from chipwise.training.laws.scaling import START

WEIGHTS = "int8"
BAND = 0.05
POWER_METRICS = 20_000


@dataclass(frozen=True)
class Subnet:
    """One sub-network with its price."""

    number: int
    row: tuple[int, ...]  # of the space
    design: Design
    latency_s: float  # predicted, of one token in decode
    flops: int  # of one token in decode
    band: bool

    @property
    def arch(self) -> ArchSpec:
        """Designs to train."""
        return self.design.arch

    @property
    def name(self) -> str:
        """One printed line."""
        return f"{self.number:02d} {summary(self.design)}"


def feasible(spec: RunSpec, space: SearchSpace, costing: CostModel, *, count: int, seed: list[int]):
    """Rows within the limits among ``count`` random ones, and their predicted decode latencies."""
    rows = space.sample(count, np.random.default_rng(seed))
    rows[:, space.index["weights"]] = spec.space.weights.index(WEIGHTS)
    rows = np.unique(space.canonical(rows), axis=0)
    known = costing.metrics(rows)
    keep = excess(tuple(of_medians(limit) for limit in spec.limits), known) <= 0
    return rows[keep], known["tpot_p50"][keep]


def of_medians(limit: Constraint) -> Constraint:
    """A limit on a tail as a limit of half its value on the median; other limits unchanged."""
    if not limit.metric.endswith("_p99"):
        return limit
    return replace(limit, metric=limit.metric.replace("_p99", "_p50"), limit=limit.limit / 2)


def draw(spec: RunSpec, space: SearchSpace, costing: CostModel, *, half: int, seed: int) -> list[Subnet]:
    """``half`` sub-networks spread over latency and ``half`` from the band."""
    rows, latency_s = feasible(spec, space, costing, count=POWER_METRICS, seed=[seed, 11])
    random = np.random.default_rng([seed, 12])
    parts = np.array_split(np.argsort(latency_s, kind="stable"), half)
    chosen = [int(random.choice(part)) for part in parts]
    near = np.abs(latency_s / np.median(latency_s) - 1) <= BAND
    rest = np.setdiff1d(np.flatnonzero(near), chosen)
    chosen += [int(i) for i in random.choice(rest, half, replace=False)]
    subnets = []
    for number, i in enumerate(chosen):
        design = space.design(rows[i], name=f"subnet {number:02d}")
        work = lower(design, spec.workload, Phase.DECODE).work()
        row = tuple(int(gene) for gene in rows[i])
        subnets.append(Subnet(number, row, design, float(latency_s[i]), work.flops, bool(near[i])))
    return subnets


def layer_parameters(arch: ArchSpec) -> int:
    """Parameters of the layers and the final norm: what LiteTransformerSearch ranks by."""
    return arch.parameters() - arch.embedding_parameters()


def law(subnet: Subnet, data: TokenData, tokens: int) -> float:
    """Bits per byte that the shipped scaling law states for this size after so many tokens, before any training."""
    head = subnet.arch.vocab_size * subnet.arch.d_model
    return float(START.loss(layer_parameters(subnet.arch), head, tokens * data.bytes_per_token))
