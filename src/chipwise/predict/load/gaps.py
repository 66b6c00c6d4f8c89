"""Gaps between the tokens of a request (inter-token latency): how long a streaming client waits for the next token.

A gap lasts from one token of a request to its next token. It contains one decode step and everything that the engine
did before this step, such as a separate step for another request's prompt, or the wait after a preemption. With
speculative decoding, all tokens of a step arrive together, so a gap lasts from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The decode steps of each request, from which the gaps between its tokens follow.

    ``ends_s`` (steps,) is the time at which each decode step ends. A span is a run of decode steps of one request: it
    has the request's number, the time ``since_s`` of the token before the span, and the steps ``first`` to ``last``
    (exclusive). A request that was preempted has several spans, in order.
    """

    ends_s: Float64Array
    request: Int64Array
    since_s: Float64Array
    first: Int64Array
    last: Int64Array

    def taken(self, rows: Int64Array, count: int) -> Spans:
        """Spans of only some of the ``count`` requests: request ``rows[i]`` gets the number ``i``."""
        number = np.full(count, -1, dtype=np.int64)
        number[rows] = np.arange(len(rows))
        kept = number[self.request] >= 0
        return replace(
            self,
            request=number[self.request[kept]],
            since_s=self.since_s[kept],
            first=self.first[kept],
            last=self.last[kept],
        )

    def later(self, seconds: Float64Array) -> Spans:
        """A copy in which the first gap of each request starts earlier, by ``seconds`` (requests,).

        This is for requests whose first token was generated earlier, by another machine.
        """
        since_s = self.since_s.copy()
        request, at = np.unique(self.request, return_index=True)
        since_s[at] -= seconds[request]
        return replace(self, since_s=since_s)

    def gaps(self, done: npt.NDArray[np.bool_]) -> tuple[Float64Array, Int64Array]:
        """Lengths of gaps in seconds, and how often each length occurred. Only requests marked in ``done`` count."""
        kept = np.flatnonzero(done[self.request])
        kept = kept[np.argsort(self.request[kept], kind="stable")]
        request, first, last = (x[kept] for x in (self.request, self.first, self.last))
        since_s = self.since_s[kept]
        some = last > first
        until_s = np.where(some, self.ends_s[np.maximum(last, 1) - 1] if len(self.ends_s) else 0.0, since_s)
        again = np.flatnonzero(request[1:] == request[:-1])  # computed again after a preemption
        edges = np.zeros(len(self.ends_s) + 1, dtype=np.int64)
        np.add.at(edges, first[some] + 1, 1)  # a span's first gap begins at its ``since_s``, others at a step's end
        np.add.at(edges, last[some], -1)
        counts = np.cumsum(edges)[: len(self.ends_s)]
        often = np.flatnonzero(counts)
        own = np.concatenate([self.ends_s[first[some]] - since_s[some], since_s[again + 1] - until_s[again]])
        return (
            np.concatenate([self.ends_s[often] - self.ends_s[often - 1], own]),
            np.concatenate([counts[often], np.ones(len(own), dtype=np.int64)]),
        )


def spans_of(runs: Sequence[tuple[float, int, float, float]], spans: Sequence[tuple[int, float, int, int]]) -> Spans:
    """Builds spans from the record of an engine.

    Args:
        runs: Groups of consecutive decode steps: start in seconds, number of steps, and duration of the first and of
            the last step. Durations change linearly within a group.
        spans: For each span: the request, the time of the token before the span, its first step, and the step after
            its last.
    """
    starts, first_s, last_s = (np.array([run[i] for run in runs], np.float64) for i in (0, 2, 3))
    counts = np.array([run[1] for run in runs], np.int64)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # index of a step in its run
    slope_s = (last_s - first_s) / np.maximum(counts - 1, 1)
    done = place + 1
    ends_s = np.repeat(starts, counts) + done * np.repeat(first_s, counts)
    ends_s += 0.5 * place * done * np.repeat(slope_s, counts)
    request, first, last = (np.array([span[i] for span in spans], np.int64) for i in (0, 2, 3))
    since_s = np.array([span[1] for span in spans], np.float64)
    return Spans(ends_s=ends_s, request=request, since_s=since_s, first=first, last=last)


def joined_spans(lanes: Sequence[Spans], places: Sequence[Int64Array]) -> Spans:
    """Joins the spans of several lanes; request ``i`` of a lane gets the number ``places[lane][i]``."""
    before = np.cumsum([0, *(len(each.ends_s) for each in lanes)])
    return Spans(
        ends_s=np.concatenate([each.ends_s for each in lanes]),
        request=np.concatenate([place[each.request] for each, place in zip(lanes, places, strict=True)]),
        since_s=np.concatenate([each.since_s for each in lanes]),
        first=np.concatenate([each.first + start for each, start in zip(lanes, before[:-1], strict=True)]),
        last=np.concatenate([each.last + start for each, start in zip(lanes, before[:-1], strict=True)]),
    )
