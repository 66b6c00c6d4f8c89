"""The field ``train`` of a run file: the place where candidates are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core import units
from chipwise.errors import SpecError, nearest, short
from chipwise.training.trainers.protocol import TRAINERS, kind_of

FORMS = ("local", "cuda", "cuda:0,1", "ray", "ray://head:10001", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Where and how candidates are trained.

    These settings may be changed when a run continues, because trials stay comparable.

    ``on`` is ``local`` (this machine's cores), ``cuda`` or ``cuda:0,1`` (GPUs of this machine), ``ray`` (a Ray cluster
    started on this machine), ``ray://head:10001`` (a Ray cluster), or ``jobs`` (a folder of jobs that you run
    elsewhere).
    """

    on: str = "local"
    device: Literal["cpu", "cuda"] | None = None  # kind of device, for ray and jobs; the CPU unless given
    price: str | float | None = None  # per hour of one device (a GPU or a CPU core), for budgets in dollars
    precision: Literal["bf16", "fp32"] | None = None  # of matrix products; the faster one unless given

    def __post_init__(self) -> None:
        if self.kind not in TRAINERS.names():
            raise SpecError(f"unknown trainer {short(self.on)}; {nearest(self.on, FORMS)}", field="on")
        rest = self.on.removeprefix(self.kind)
        if self.kind == "cuda" and rest and not all(part.isdecimal() for part in rest[1:].split(",")):
            raise SpecError(f"{short(self.on)} names no GPUs; write cuda or cuda:0,1", field="on")
        if self.kind == "cuda" and len(set(rest[1:].split(","))) < len(rest[1:].split(",")):
            raise SpecError(f"{short(self.on)} names a GPU twice", field="on")
        if self.kind == "ray" and rest and not (rest.startswith("://") and rest[3:].rpartition(":")[2].isdecimal()):
            raise SpecError(f"{short(self.on)} is not an address; write ray or ray://head:10001", field="on")
        if self.kind in ("local", "jobs") and rest:
            raise SpecError(f"{self.kind} takes nothing after its name, but is followed by {short(rest)}", field="on")
        if self.device is not None and self.kind not in ("ray", "jobs"):
            raise SpecError(f"{self.kind} trains on {self.trains_on}; only ray and jobs take a device", field="device")
        _ = self.usd_per_s

    @property
    def kind(self) -> str:
        """The trainer's key in the table."""
        return kind_of(self.on)

    @property
    def trains_on(self) -> Literal["cpu", "cuda"]:
        """Kind of device that trains: ``cpu`` or ``cuda``."""
        chosen = self.device if self.kind in ("ray", "jobs") else None
        return chosen or ("cuda" if self.kind == "cuda" else "cpu")

    @property
    def usd_per_s(self) -> float | None:
        """Dollars per second of one device; None if no price is stated."""
        if self.price is None:
            return None
        value = units.parse_field(self.price, "price_rate", "price")
        if value <= 0:
            raise SpecError(f"must be positive, not {short(self.price, quoted=False)}", field="price")
        return value

    @property
    def accounts(self) -> frozenset[str]:
        """The budgets whose use this trainer can report: some of ``cpu``, ``gpu``, ``tokens`` and ``usd``."""
        known = frozenset(TRAINERS.load(self.kind).accounts)
        seconds = "gpu" if self.trains_on == "cuda" else "cpu"
        return frozenset(known & {seconds, "tokens"}) | {"usd"}

    @property
    def whole(self) -> bool:
        """Whether a budget in CPU seconds counts everything a search does, not only the training of candidates."""
        return bool(TRAINERS.load(self.kind).whole)
