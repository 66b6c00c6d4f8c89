"""The load of a simulation, as users specify it: a rate, a number of clients in a closed loop, or a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chipwise.core import units
from chipwise.core.fields import whole_number
from chipwise.design.fleet.arrangements import check_positions
from chipwise.design.fleet.question import rate_of
from chipwise.errors import SpecError, counted
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.load.load import Arrivals, Load, RequestClass, describe_arrivals, generate_load
from chipwise.predict.load.traces import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """The requests of a simulation; exactly one of ``rate``, ``clients`` and ``trace`` must be set.

    Attributes:
        rate: Requests per second: ``8``, ``"8/s"``, ``"90/min"``.
        clients: Number of clients in a closed loop, each sending one request after another.
        think_s: Seconds that a client waits between an answer and its next request.
        trace: A file of requests with their sizes (JSON lines or CSV).
        prompt: Mean prompt tokens.
        new: Mean new tokens.
        spread: Coefficient of variation of prompt and new tokens, which are log-normal.
        shared_tokens: Prompt tokens shared between requests (a system prompt), which the prefix cache holds.
        prefixes: Number of different shared prefixes.
        arrivals: Distribution of the gaps between requests: ``constant``, ``poisson`` or ``gamma``.
        burstiness: Squared coefficient of variation of the gaps, for ``gamma``.
        requests: Requests per seed; a trace is replayed in full.
        seeds: Number of random loads to simulate; results are means over them.
        seed: Random seed of the first load; the next loads use the following numbers.
    """

    rate: float | str | None = None
    clients: int | None = None
    think_s: float = 0.0
    trace: str | Path | None = None
    prompt: int = 1024
    new: int = 128
    spread: float = 0.0
    shared_tokens: int = 0
    prefixes: int = 1
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0
    requests: int = 1000
    seeds: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rate is not None) + (self.clients is not None) + (self.trace is not None) != 1:
            raise SpecError("set exactly one of rate, clients and trace", field="rate")
        whole_number("seeds", self.seeds, most=100)
        if self.think_s and self.clients is None:
            raise SpecError("only applies to clients; set the field clients instead of rate or trace", field="think_s")

    @property
    def closed(self) -> bool:
        """Whether metrics count all requests, instead of only those in the steady part of the load."""
        return self.clients is not None or self.trace is not None

    def requests_of(self, arch: ArchSpec) -> RequestClass:
        """The class of these requests for ``arch``.

        If the model reads no text, each request is one input, such as an image.
        """
        return RequestClass(
            prompt_tokens=self.prompt, new_tokens=self.new, spread=self.spread,
            shared_tokens=self.shared_tokens, prefixes=self.prefixes,
        ).as_read(arch)  # fmt: skip

    def loads(self, arch: ArchSpec) -> list[Load]:
        """One load per seed; requests of random length are truncated to the context of ``arch``.

        Raises:
            SpecError: The requests exceed the context, the trace is damaged, or a field is out of range.
        """
        longest, each = arch.context, self.requests_of(arch)
        if self.trace is not None:
            return [read_trace(self.trace, longest=longest)[0]]
        check_positions(arch, each.prompt_tokens, each.new_tokens, field="prompt")
        loads = [
            generate_load(
                (each,), count=self.requests, rate_per_s=None if self.rate is None else rate_of(self.rate),
                arrivals=self.arrivals, burstiness=self.burstiness, clients=self.clients, think_s=self.think_s,
                seed=self.seed + i,
            )
            for i in range(self.seeds)
        ]  # fmt: skip
        return loads if longest is None or each.spread == 0 else [load.within(longest) for load in loads]

    def describe(self, arch: ArchSpec, first: Load) -> str:
        """Describes the load in words; ``first`` is the first of :meth:`loads`."""
        each = self.requests_of(arch).describe()
        if self.trace is not None:
            return f"the {counted(len(first), 'request')} of {self.trace}"
        if self.clients is not None:
            waits = f", each waiting {units.show(self.think_s, 'time')} between its requests" if self.think_s else ""
            return f"{counted(self.clients, 'client')} in a closed loop{waits}; {each}"
        return f"{describe_arrivals(rate_of(self.rate), self.arrivals, self.burstiness)}; {each}"
