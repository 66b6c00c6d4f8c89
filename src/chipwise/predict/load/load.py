"""Arrival times and sizes of requests: generated at a rate, read from a trace, or sent by clients in a closed loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.fields import MOST, whole_number
from chipwise.errors import SpecError, short
from chipwise.model.arch.arch import ArchSpec

Arrivals = Literal["constant", "poisson", "gamma"]
MOST_REQUESTS = 2_000_000
"""Maximum number of requests; a larger load would take minutes and gigabytes to replay."""
MOST_SPREAD = 10.0
"""Maximum coefficient of variation of token counts. Above it, the mean of a sample is far from the requested mean."""
MOST_WAIT_S = 86_400.0
"""Maximum of think times, overheads and timeouts in seconds: a day."""

COLUMNS = ("arrival_s", "prompt_tokens", "new_tokens", "kind", "prefix", "prefix_tokens")
"""Names of the arrays of a load."""

WHOLE_INPUT = "each with one whole input: an image, or a history with its candidates"
"""Text that describes the requests to a model without text input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests in order of arrival. All arrays have one value per request.

    ``prefix`` is the index of the shared text with which the prompt starts (-1: none); this text has ``prefix_tokens``
    tokens. If the load is ``prefilled``, another machine has processed the prompts and generated the first tokens, and
    each request arrives with its KV cache. With ``clients``, at most that many requests are in flight: each client
    sends its next request ``think_s`` after its previous request ended, so ``arrival_s`` applies only to each client's
    first request.
    """

    arrival_s: Float64Array
    prompt_tokens: npt.NDArray[np.int64]
    new_tokens: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]  # class of each request
    prefix: npt.NDArray[np.int64]
    prefix_tokens: npt.NDArray[np.int64]
    prefilled: bool = False
    clients: int | None = None
    think_s: float = 0.0

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate_per_s(self) -> float:
        """Requests per second, from the first arrival to the last; infinite if all arrive at once."""
        if len(self) < 2:
            return np.inf
        spread = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / spread if spread > 0 else np.inf

    @property
    def longest(self) -> int:
        """Positions of the longest sequence."""
        return int((self.prompt_tokens + self.new_tokens).max())

    def taken(self, rows: npt.NDArray[np.int64] | slice) -> Load:
        """The load with only the requests with the indices ``rows``, in this order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def within(self, longest: int) -> Load:
        """The load with requests of at most ``longest`` positions; answers are shortened before prompts."""
        prompt = np.minimum(self.prompt_tokens, longest - (self.new_tokens > 0))
        return replace(self, prompt_tokens=prompt, new_tokens=np.minimum(self.new_tokens, longest - prompt))

    def silence(self) -> str | None:
        """A warning if one gap between arrivals lasts half of the load's time or more; None otherwise."""
        gaps = np.diff(self.arrival_s)
        whole = float(gaps.sum())
        if len(gaps) < 2 or whole <= 0 or gaps.max() < 0.5 * whole or self.clients is not None:
            return None
        return (
            f"no request arrives for {units.show(float(gaps.max()), 'time')} of the {units.show(whole, 'time')} that "
            "the load lasts, so mean rates are not meaningful; replay the busy parts of the load separately"
        )

    def at_rate(self, factor: float) -> Load:
        """The same requests at ``factor`` times the rate."""
        return replace(self, arrival_s=self.arrival_s / factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """A class of requests, with mean numbers of prompt tokens and new tokens.

    A request's numbers of tokens are lognormal with the coefficient of variation ``spread``. Each prompt starts with
    one of ``prefixes`` shared texts, such as system prompts, which have ``shared_tokens`` tokens (0: nothing is
    shared).
    """

    name: str = "requests"
    share: float = 1.0
    prompt_tokens: int = 1024
    new_tokens: int = 128
    spread: float = 0.0
    shared_tokens: int = 0
    prefixes: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.share <= MOST:
            raise SpecError(f"must be more than 0 and at most {MOST:,}, not {short(self.share)}", field="share")
        for name, least in (("prompt_tokens", 1), ("new_tokens", 0), ("shared_tokens", 0)):
            whole_number(name, getattr(self, name), least=least)
        whole_number("prefixes", self.prefixes, most=MOST_REQUESTS)
        if self.prefixes > 1 and not self.shared_tokens:
            raise SpecError("needs shared_tokens, the length of the shared texts", field="prefixes")
        if self.shared_tokens >= self.prompt_tokens and self.shared_tokens:
            raise SpecError(
                f"must be fewer than the prompt's {self.prompt_tokens:,} tokens, not {self.shared_tokens:,}",
                field="shared_tokens",
            )
        if not 0 <= self.spread <= MOST_SPREAD:
            raise SpecError(f"must be from 0 to {MOST_SPREAD:g}, not {short(self.spread)}", field="spread")

    def as_read(self, arch: ArchSpec) -> RequestClass:
        """The requests as ``arch`` reads them: without new tokens if it generates none, or as whole inputs if it reads
        no text.
        """
        if not arch.reads_tokens:
            return WholeInputs(name=self.name, share=self.share, prefixes=self.prefixes)
        return self if arch.causal else replace(self, new_tokens=0)

    def describe(self) -> str:
        """Text such as ``500 prompt and 250 new tokens, starting with one of 4 shared texts of 300 tokens``."""
        parts = [f"{self.prompt_tokens:,} prompt and {self.new_tokens:,} new tokens"]
        if not self.new_tokens:
            parts = [f"{self.prompt_tokens:,} tokens to read"]
        if self.spread:
            parts.append(f"varying by {units.show(self.spread, 'share')}")
        if self.shared_tokens:
            which = f"one of {self.prefixes:,} shared texts" if self.prefixes > 1 else "a shared text"
            parts.append(f"starting with {which} of {self.shared_tokens:,} tokens")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeInputs(RequestClass):
    """Requests to a model without text input. Each request counts as one token."""

    prompt_tokens: int = 1
    new_tokens: int = 0

    def describe(self) -> str:
        """Text that names the inputs: images, or histories with candidates."""
        return WHOLE_INPUT


def describe_arrivals(rate_per_s: float, arrivals: Arrivals, burstiness: float) -> str:
    """Text such as ``20 requests/s, Poisson arrivals``."""
    words = {
        "constant": "evenly spaced",
        "poisson": "Poisson arrivals",
        "gamma": f"gamma arrivals of burstiness {burstiness:g}",
    }
    return f"{units.number(rate_per_s)} requests/s, {words[arrivals]}"


def check_arrivals(arrivals: Arrivals, burstiness: float) -> None:
    """Checks that the burstiness is valid for the kind of arrivals.

    Raises:
        SpecError: The burstiness is out of range, or is given for arrivals whose gaps are not gamma-distributed.
    """
    if not 0 < burstiness <= 1e4:
        raise SpecError(f"must be above 0 and at most 10,000, not {short(burstiness)}", field="burstiness")
    if burstiness != 1 and arrivals != "gamma":
        raise SpecError(
            f"only applies to gamma arrivals, but `arrivals` is {arrivals!r}; set `arrivals` to 'gamma'",
            field="burstiness",
        )


def generate_load(
    classes: tuple[RequestClass, ...],
    *,
    count: int,
    rate_per_s: float | None,
    arrivals: Arrivals = "poisson",
    burstiness: float = 1.0,
    clients: int | None = None,
    think_s: float = 0.0,
    seed: int,
) -> Load:
    """Generates ``count`` random requests of ``classes`` according to their shares.

    For the same seed, the requests are the same at every rate; only the arrival times are scaled. So rates can be
    compared.

    Args:
        classes: Classes of requests.
        count: Number of requests.
        rate_per_s: Requests per second; None with ``clients``.
        arrivals: Distribution of the gaps between arrivals: ``constant``, ``poisson`` or ``gamma``.
        burstiness: Squared coefficient of variation of gamma gaps: 1 is Poisson, and larger values are burstier.
        clients: Number of clients in a closed loop, each of which sends one request after another.
        think_s: Seconds that a client waits before its next request.
        seed: Random seed.

    Raises:
        SpecError: A number is out of range.
    """
    if not 1 <= count <= MOST_REQUESTS:
        raise SpecError(f"must be from 1 to {MOST_REQUESTS:,}, not {count:,}", field="requests")
    if clients is None and (rate_per_s is None or not 0 < rate_per_s < 1e9):
        raise SpecError(f"must be above zero and finite, not {rate_per_s}", field="rate")
    if clients is not None:
        whole_number("clients", clients, most=MOST_REQUESTS)
    if not 0 <= think_s <= MOST_WAIT_S:
        raise SpecError(f"must be from 0 to {MOST_WAIT_S:,.0f} s, not {think_s:g} s", field="think_s")
    if think_s and clients is None:
        raise SpecError("only applies to clients, not to requests that arrive at a rate", field="think_s")
    check_arrivals(arrivals, burstiness)
    whole_number("seed", seed, least=0, most=2**63)
    gaps_rng, kinds_rng, sizes_rng = (np.random.default_rng([seed, stream]) for stream in range(3))
    if clients is not None:
        arrival_s = np.zeros(count)
    else:
        assert rate_per_s is not None
        if arrivals == "constant":
            gaps = np.ones(count)
        elif arrivals == "poisson":
            gaps = gaps_rng.exponential(1.0, count)
        else:
            gaps = gaps_rng.gamma(1 / burstiness, burstiness, count)
        gaps[0] = 0.0
        arrival_s = np.cumsum(gaps) / rate_per_s
    shares = np.array([each.share for each in classes])
    kind = kinds_rng.choice(len(classes), count, p=shares / shares.sum()) if len(classes) > 1 else np.zeros(count, int)

    def column(name: str) -> npt.NDArray[np.int64]:
        return np.array([getattr(each, name) for each in classes], dtype=np.int64)[kind]

    spread = np.array([each.spread for each in classes])[kind]
    deviation = np.sqrt(np.log1p(spread**2))
    draws = np.exp(deviation * sizes_rng.standard_normal((2, count)) - deviation**2 / 2)
    prompt = np.maximum(np.round(column("prompt_tokens") * draws[0]), column("shared_tokens") + 1).astype(np.int64)
    new = column("new_tokens")
    new = np.where(new > 0, np.maximum(np.round(new * draws[1]), 1), 0).astype(np.int64)
    shared, first = column("shared_tokens"), np.cumsum([0, *(each.prefixes for each in classes)])[kind]
    which = first + kinds_rng.integers(0, column("prefixes"))
    return Load(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        new_tokens=new,
        kind=np.asarray(kind, dtype=np.int64),
        prefix=np.where(shared > 0, which, -1),
        prefix_tokens=shared,
        clients=clients,
        think_s=think_s,
    )
