"""Simulates one replica of an engine under load: which steps its scheduler runs, and when each request is answered.

An event is an arrival that can be admitted, the end of a request, the use of the cache's last free block, or a client
that gives up. Between two events, all steps decode the same sequences, and each context grows by one position per step.
These steps are computed together, so the cost of the simulation does not grow with the number of generated tokens. The
result depends only on the load, the step times and the policy.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.errors import DoesNotFit
from chipwise.predict.load.gaps import Spans, spans_of
from chipwise.predict.load.load import Load
from chipwise.predict.load.policy import Policy
from chipwise.predict.load.step_times import StepTimes

UNSERVED = -1.0  # value in arrays of times if a request did not reach this point
JITTER_SEED = 0  # seed of random delays, the same in every replay
DRAFT_SEED = 1  # seed of the accepted drafts
COLUMNS = ("arrival_s", "scheduled_s", "first_s", "last_s", "preemptions")  # arrays of an outcome
EVERY = 20_000  # finished requests between two progress reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """State of the engine at each event, (events,): time, running and waiting sequences, used share of the cache."""

    at_s: Float64Array
    running: npt.NDArray[np.int64]
    waiting: npt.NDArray[np.int64]
    cache_share: Float64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Outcome of a replay. Arrays have one value per request; times are in seconds since the load began.

    ``first_s`` and ``last_s`` are the times at which the first and the last token reached the client, or ``UNSERVED``
    if the client gave up earlier. ``spans`` are the decode steps of each request. ``steps`` is the number of the
    engine's steps, ``busy_s`` their total time, and ``reading_s`` the part of this time that was spent on prompts.
    ``blocked`` counts the steps that left a request waiting, by the resource that was missing: ``cache``,
    ``sequences`` or ``tokens``.
    """

    load: Load
    arrival_s: Float64Array
    scheduled_s: Float64Array
    first_s: Float64Array
    last_s: Float64Array
    preemptions: npt.NDArray[np.int64]
    spans: Spans
    computed_tokens: int  # computed positions, including recomputation after preemption
    steps: int
    busy_s: float
    reading_s: float
    blocked: dict[str, int]
    timeline: Timeline | None = None

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """Mask of requests that were answered completely."""
        return self.last_s >= 0

    def taken(self, rows: npt.NDArray[np.int64]) -> Served:
        """The outcome of only the requests with the indices ``rows``; figures of the engine stay the same."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, load=self.load.taken(rows), spans=self.spans.taken(rows, len(self.load)), **columns)


@dataclass(slots=True)
class _Prefix:
    """A shared prefix in the cache: its tokens, and the number of running requests that use it."""

    tokens: int
    users: int


def replay(
    load: Load,
    table: StepTimes,
    policy: Policy,
    *,
    cache_tokens: float,
    slow: tuple[float, float] = (1.0, 1.0),
    timeline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Replays ``load`` on one replica.

    Args:
        load: The requests.
        table: Step times.
        policy: Scheduling rules.
        cache_tokens: Number of positions that the cache holds for all sequences together.
        slow: Two factors on every step: on the time of its decode part, and on the time of its prefill part.
        timeline: Whether to record the engine's state over time.
        on_progress: Called from time to time with the number of finished requests and the total number.

    Raises:
        DoesNotFit: A request is longer than the whole cache.
    """
    needed = load.prompt_tokens + np.maximum(load.new_tokens - 1, 0)
    blocks = np.ceil(needed / policy.block_tokens)
    free = cache_tokens // policy.block_tokens
    generates = bool((load.new_tokens > 0).any())
    if generates and blocks.max() > free:
        raise DoesNotFit(
            f"a request needs {int(needed.max()):,} positions, but the whole cache only holds "
            f"{int(free * policy.block_tokens):,}"
        )
    engine = _Engine(load, table, policy, free if generates else inf, slow, timeline)
    engine.run(on_progress)
    return engine.served()


class _Engine:
    """The state of one replica during a replay. Decoding sequences are sorted by the step in which they will end."""

    def __init__(
        self, load: Load, table: StepTimes, policy: Policy, blocks: float, slow: tuple[float, float], timeline: bool
    ) -> None:
        self.load, self.table, self.policy = load, table, policy
        self.slow_decode, self.slow_read = slow
        count = len(load)
        self.prompt: list[int] = load.prompt_tokens.tolist()
        self.new: list[int] = load.new_tokens.tolist()
        self.prefix: list[int] | None = None
        self.shared: list[int] = []
        if policy.prefix_cache and (load.prefix >= 0).any():
            self.prefix, self.shared = load.prefix.tolist(), load.prefix_tokens.tolist()
        self.arrivals: list[float] = (load.arrival_s + policy.request_s).tolist()
        if load.clients is not None:
            self.arrivals = self.arrivals[: load.clients]
        self.next = 0  # index of the first arrival that is not queued yet
        self.count = count
        self.waiting: deque[int] = deque()
        self.order: list[int] = []  # decoding requests in order of their start; may contain finished ones
        self.place = [0] * count  # number of admissions of each request, to detect stale entries of ``ends``
        self.ends: list[tuple[int, int, int]] = []  # step, request, admission
        self.joined = [-1] * count  # the step from which a request decodes; -1 if it is not decoding
        self.context = [0] * count  # cached positions of each request at that step
        self.since = [0.0] * count  # time of the token before that step
        self.spans: list[tuple[int, float, int, int]] = []  # see ``spans_of``
        self.runs: list[tuple[float, int, float, float]] = []
        self.left = list(self.new)  # tokens still to be generated
        self.reading: tuple[int, int, int] | None = None  # request, computed positions, all positions
        self.n = 0  # number of decoding sequences
        self.held = 0.0  # sum of the decoding sequences' contexts
        self.step = 0
        self.now = 0.0
        self.seen = 0.0  # arrivals up to this time can be admitted now
        self.size = policy.block_tokens
        self.free = blocks
        self.blocks = blocks
        self.used = [0.0] * count  # blocks that each running request owns
        self.residues = [0] * self.size
        self.prefixes: OrderedDict[int, _Prefix] = OrderedDict()
        speculation = policy.speculation
        self.pace = speculation.tokens_per_step if speculation else 1.0
        self.width = policy.width
        self.steps_of: list[int] | None = None  # decode steps of each request, random with speculative decoding
        if speculation:
            self.steps_of = speculation.steps(load.new_tokens - 1, seed=DRAFT_SEED).tolist()
        self.scheduled = array("d", [UNSERVED]) * count
        self.first = array("d", [UNSERVED]) * count
        self.last = array("d", [UNSERVED]) * count
        self.preempted = array("l", [0]) * count
        self.ended = 0
        self.oldest = 0  # first request that may still give up
        self.over = bytearray(count)
        self.computed, self.steps, self.busy_s, self.reading_s = 0, 0, 0.0, 0.0
        self.blocked = {"cache": 0, "sequences": 0, "tokens": 0}
        self.history: list[tuple[float, int, int, float]] | None = [] if timeline else None

    def run(self, on_progress: Callable[[int, int], None] | None) -> None:
        """Runs until every request has ended."""
        reported = 0
        while self.ended < self.count:
            if not self.n and self.reading is None and not self.waiting:
                if self.next >= len(self.arrivals):
                    break
                self.now = max(self.now, self.arrivals[self.next])
                self.seen = self.now
            self._arrive()
            if self.policy.timeout_s is not None:
                self._give_up(self.policy.timeout_s)
            chunks, ending, budget = self._admit()
            if self.history is not None:
                share = 1 - self.free / self.blocks if self.blocks not in (0, inf) else 0.0
                self.history.append((self.now, self.n + len(chunks), len(self.waiting), share))
            if chunks:
                self._read(chunks, ending)
            elif self.n:
                self._decode(budget)
            elif self.policy.timeout_s is None and not self.waiting:
                continue
            else:
                self._idle()
            if on_progress is not None and self.ended - reported >= EVERY:
                reported = self.ended
                on_progress(self.ended, self.count)

    def _idle(self) -> None:
        """Advances time to the next arrival or to the next client that gives up; called if no step can run."""
        upcoming = self.arrivals[self.next] if self.next < len(self.arrivals) else inf
        if self.policy.timeout_s is not None and self.waiting:
            upcoming = min(upcoming, self.arrivals[self.waiting[0]] + self.policy.timeout_s)
        self.now = self.seen = max(self.now, upcoming)

    def _arrive(self) -> None:
        arrivals, i = self.arrivals, self.next
        while i < len(arrivals) and arrivals[i] <= self.seen:
            self.waiting.append(i)
            i += 1
        self.next = i

    def _give_up(self, timeout_s: float) -> None:
        """Aborts requests whose clients have timed out."""
        while self.oldest < self.next and (
            self.over[self.oldest] or self.arrivals[self.oldest] + timeout_s <= self.now
        ):
            i = self.oldest
            if not self.over[i]:
                if self.joined[i] >= 0:
                    self._leave(i)
                elif self.reading is not None and self.reading[0] == i:
                    self.reading = None
                    self._release(i)
                else:
                    self.waiting.remove(i)
                self._over(i)
            self.oldest += 1

    def _answered(self, i: int) -> None:
        """Ends request ``i`` after its last token, and records the time unless its client has given up by then."""
        timeout_s = self.policy.timeout_s
        if timeout_s is None or self.now <= self.arrivals[i] + timeout_s:
            self.last[i] = self.now + self.policy.answer_s
        self._over(i)

    def _over(self, i: int) -> None:
        """Ends request ``i``, answered or not. In a closed loop, its client then schedules the next request."""
        self.over[i] = 1
        self.ended += 1
        if self.load.clients is not None and len(self.arrivals) < self.count:
            self.arrivals.append(self.now + self.load.think_s + self.policy.request_s)

    # the cache

    def _room(self, wanted: float) -> bool:
        """Evicts unused prefixes until ``wanted`` blocks are free; returns whether that succeeded."""
        while self.free < wanted and self.prefixes:
            unused = next((key for key, held in self.prefixes.items() if not held.users), None)
            if unused is None:
                break
            self.free += self.prefixes.pop(unused).tokens // self.size
        return self.free >= wanted

    def _begin(self, i: int, total: int) -> int | None:
        """Allocates blocks for the ``total`` positions of request ``i``.

        Returns how many of these positions are already in the cache, or None if the cache has no room.
        """
        size = self.size
        key = -1 if self.prefix is None else self.prefix[i]
        if key < 0:
            wanted = -(-total // size)
            if self.free < wanted and not self._room(wanted):
                return None
            self.free -= wanted
            self.used[i] = wanted
            return 0
        shared: int = min(self.shared[i], total - 1) // size * size
        held = self.prefixes.get(key)
        known: int = held.tokens if held is not None else 0
        if held is not None:
            held.users += 1  # prevents its eviction
        grown = max(0, shared - known)
        wanted = -(-(total - shared) // size) + grown // size
        if not self._room(wanted):
            if held is not None:
                held.users -= 1
            return None
        self.free -= wanted
        self.used[i] = -(-(total - shared) // size)
        if held is None:
            self.prefixes[key] = _Prefix(shared, 1)
        else:
            held.tokens = max(known, shared)
            self.prefixes.move_to_end(key)
        return min(known, shared)

    def _release(self, i: int) -> None:
        self.free += self.used[i]
        self.used[i] = 0
        if self.prefix is not None and self.prefix[i] >= 0:
            self.prefixes[self.prefix[i]].users -= 1

    def _grown(self, steps: int) -> int:
        return steps if self.pace == 1.0 else round(steps * self.pace)

    def _leave(self, i: int) -> None:
        """Stops decoding request ``i`` and frees its blocks."""
        positions = self.context[i] + self._grown(self.step - self.joined[i])
        self.held -= positions
        self.residues[(self.context[i] - self.joined[i]) % self.size] -= 1
        key = self.prefix[i] if self.prefix is not None else -1
        if self.pace == 1.0:
            shared = min(self.shared[i], self.context[i] - 1) // self.size * self.size if key >= 0 else 0
            self.used[i] = -(-(positions - shared) // self.size)
        else:
            self.used[i] += (self.step - self.joined[i]) * self.pace / self.size
        self._release(i)
        self.spans.append((i, self.since[i], self.joined[i], self.step))
        self.joined[i] = -1
        self.n -= 1
        if not self.n:
            self.held = 0.0

    def _preempt(self) -> None:
        """Preempts the request that was admitted last.

        It returns to the head of the queue, and its positions will be computed again.
        """
        while True:
            i = self.order.pop()
            if self.joined[i] >= 0:
                break
        given = min(self._grown(self.step - self.joined[i]), self.left[i] - 1)
        self._leave(i)
        self.left[i] -= given
        self.context[i] += given
        self.preempted[i] += 1
        self.waiting.appendleft(i)

    # forming a step

    def _admit(self) -> tuple[list[tuple[int, int, int]], list[int], int]:
        """Admits waiting requests and forms the prompt part of the next step.

        Returns the chunks of prompts (request, tokens, past), the requests whose prompts the step completes, and the
        remaining token budget.
        """
        policy = self.policy
        budget = policy.most_tokens - (self.n * self.width if policy.mixed else 0)
        chunks: list[tuple[int, int, int]] = []
        ending: list[int] = []
        if self.reading is not None:
            budget = self._chunk(*self.reading, budget, chunks, ending)
        waiting, running = self.waiting, self.n + len(chunks)
        while waiting and budget > 0 and running < policy.most_sequences and self.reading is None:
            i = waiting[0]
            given = self.new[i] - self.left[i]
            total = self.prompt[i] + given
            if total > budget and not policy.chunked and chunks:
                break
            known = self._begin(i, total)
            if known is None:
                self.blocked["cache"] += 1
                return chunks, ending, budget
            waiting.popleft()
            if self.scheduled[i] < 0:
                self.scheduled[i] = self.now
            running += 1
            if self.load.prefilled and not given and not self.preempted[i]:
                self.first[i] = max(self.now, self.arrivals[i])
                self._join(i, total)
                continue
            budget = self._chunk(i, known, total, budget, chunks, ending)
        if waiting:
            self.blocked["sequences" if running >= policy.most_sequences else "tokens"] += 1
        return chunks, ending, budget

    def _chunk(
        self, i: int, read: int, total: int, budget: int, chunks: list[tuple[int, int, int]], ending: list[int]
    ) -> int:
        """Adds a chunk of request ``i``'s prompt to the step, and returns the remaining token budget."""
        tokens = total - read
        if tokens > budget and self.policy.chunked:
            if budget <= 0:
                self.reading = (i, read, total)
                return budget
            chunks.append((i, budget, read))
            self.reading = (i, read + budget, total)
            return 0
        chunks.append((i, tokens, read))
        ending.append(i)
        self.reading = None
        return budget - tokens

    def _join(self, i: int, total: int) -> None:
        """Starts to decode request ``i``, which has ``total`` cached positions, in the next step."""
        left = self.left[i] - 1
        if left <= 0:
            if self.preempted[i]:  # the request's last token ends a gap, too
                self.spans.append((i, self.now, self.step, self.step))
            self._release(i)
            self._answered(i)
            return
        self.left[i] = left
        self.joined[i], self.context[i] = self.step, total
        self.since[i] = max(self.now, self.arrivals[i])
        self.place[i] += 1
        self.order.append(i)
        steps = left
        if self.steps_of is not None:  # after a preemption, only the remaining steps count
            steps = max(1, ceil(self.steps_of[i] * left / (self.new[i] - 1) - 1e-9))
        heapq.heappush(self.ends, (self.step + steps, i, self.place[i]))
        self.n += 1
        self.held += total
        self.residues[(total - self.step) % self.size] += 1

    # running steps

    def _decode_s(self, n: int, context: float) -> float:
        return self.slow_decode * self.table.decode_s(n, context)

    def _read(self, chunks: list[tuple[int, int, int]], ending: list[int]) -> None:
        """Runs a step that processes prompts. If the policy mixes prompts and decoding, the step also decodes."""
        table, mixed = self.table, self.policy.mixed
        n = self.n if mixed else 0
        if n and not self._grow_one():
            n = self.n
        pieces = [(tokens, past) for _, tokens, past in chunks]
        if self.policy.padded:
            longest = max(tokens for tokens, _ in pieces)
            pieces = [(longest, past) for _, past in pieces]
        alone = self._decode_s(n, self.held / n) if n else 0.0
        context = self.held / n if n else 0.0
        whole = table.mixed_s(n, context, pieces, ending=len(ending))
        plain = alone / self.slow_decode if n else 0.0
        seconds = alone + self.slow_read * max(whole - plain, 0.0)
        self.computed += sum(tokens for _, tokens, _ in chunks) + n
        self.reading_s += seconds - alone
        started = self.now
        self._pass(seconds)
        if n:
            self.runs.append((started, 1, seconds, seconds))
            self.step += 1
            self.held += n * self.pace
        if n:
            self._finish()
        for i in ending:
            if self.first[i] < 0:
                self.first[i] = self.now + self.policy.answer_s
            self._join(i, self.prompt[i] + self.new[i] - self.left[i])
        self.seen = started if self.policy.lookahead and (self.n or self.reading) else self.now

    def _grow_one(self) -> bool:
        """Allocates one more position per decoding sequence, and returns whether no sequence had to be preempted."""
        stayed = True
        while self.n:
            needed = self._needed()
            if self.free >= needed or self._room(needed):
                self.free -= needed
                return stayed
            if self.n == 1 and self.reading is None:
                self.free -= needed  # a single sequence always fits, which was checked at the start
                return stayed
            stayed = False
            self._preempt()
        return stayed

    def _needed(self) -> float:
        if self.pace != 1.0:
            return self.n * self.pace / self.size
        return self.residues[-self.step % self.size]

    def _decode(self, budget: int) -> None:
        """Runs decode steps until the next event."""
        self._stale()
        if not self.n:
            return
        stop = self.ends[0][0] - self.step
        fitting = self._steps_with_room(stop)
        if fitting <= 0:  # negative if a sequence took a block in advance, in a step shared with prompts
            self._grow_one()  # may preempt sequences
            n = self.n
            first_s = self._decode_s(n, self.held / n)
            self._advance(1, first_s, first_s)
            return
        n = self.n
        steps = min(stop, fitting)
        context = self.held / n
        first_s = self._decode_s(n, context)
        if not self.waiting and n < self.policy.most_sequences and budget > 0 and self.next < len(self.arrivals):
            gap = self.arrivals[self.next] - self.now
            steps = min(steps, max(self._steps_until(gap, n, context, first_s, steps), 1))
        if self.policy.timeout_s is not None and self.oldest < self.next:
            gap = self.arrivals[self.oldest] + self.policy.timeout_s - self.now
            steps = min(steps, max(ceil(gap / first_s), 1))
        last_s = first_s if steps == 1 else self._decode_s(n, context + (steps - 1) * self.pace)
        self._take(steps)
        self._advance(steps, first_s, last_s)

    def _steps_until(self, gap_s: float, n: int, context: float, first_s: float, most: int) -> int:
        """Number of steps until a request that arrives in ``gap_s`` seconds can be admitted."""
        lookahead = 1 if self.policy.lookahead else 0
        if gap_s <= 0:
            return lookahead or 1
        guess = ceil(gap_s / first_s)
        if guess >= most:
            return most
        middle = self._decode_s(n, context + 0.5 * (guess - 1) * self.pace)
        return ceil(gap_s / middle) + lookahead

    def _steps_with_room(self, most: int) -> int:
        """Number of steps, at most ``most``, for which the cache has enough free blocks."""
        if self.blocks == inf:
            return most
        n, size = self.n, self.size
        if self.pace != 1.0:
            wanted = most * n * self.pace / size
            return most if self._room(wanted) else int(self.free * size / (n * self.pace))
        if self.free < -(-most // size) * n:
            self._room(-(-most // size) * n)
        full, rest = divmod(self.free, n)
        steps = int(full) * size
        while steps < most:
            needed = self.residues[-(self.step + steps) % size]
            if needed > rest:
                break
            rest -= needed
            steps += 1
        return min(steps, most)

    def _take(self, steps: int) -> None:
        """Allocates the blocks for ``steps`` steps."""
        if self.blocks == inf:
            return
        if self.pace != 1.0:
            self.free -= steps * self.n * self.pace / self.size
            return
        full, rest = divmod(steps, self.size)
        self.free -= full * self.n + sum(self.residues[-(self.step + j) % self.size] for j in range(rest))

    def _advance(self, steps: int, first_s: float, last_s: float) -> None:
        """Runs ``steps`` decode steps, whose durations change linearly from ``first_s`` to ``last_s``."""
        self.runs.append((self.now, steps, first_s, last_s))
        self._pass(0.5 * steps * (first_s + last_s), steps)
        self.computed += steps * self.n
        self.step += steps
        self.held += steps * self.n * self.pace
        self._finish()
        self.seen = self.now - last_s if self.policy.lookahead and self.n else self.now

    def _pass(self, seconds: float, steps: int = 1) -> None:
        self.now += seconds
        self.busy_s += seconds
        self.steps += steps

    def _stale(self) -> None:
        """Drops the scheduled ends of requests that were preempted or aborted in the meantime."""
        ends = self.ends
        while ends and (self.joined[ends[0][1]] < 0 or self.place[ends[0][1]] != ends[0][2]):
            heapq.heappop(ends)

    def _finish(self) -> None:
        """Removes the requests that have generated their last token."""
        ends = self.ends
        while ends and ends[0][0] <= self.step:
            _, i, place = heapq.heappop(ends)
            if self.joined[i] < 0 or self.place[i] != place:
                continue
            self._leave(i)
            self._answered(i)
        if len(self.order) > 4 * self.n + 64:
            self.order = [i for i in dict.fromkeys(self.order) if self.joined[i] >= 0]

    def served(self) -> Served:
        """The outcome of the replay."""
        load = self.load
        first, last = np.array(self.first), np.array(self.last)
        if self.policy.jitter_s:
            late_s = np.random.default_rng(JITTER_SEED).exponential(self.policy.jitter_s, len(load))
            first, last = (np.where(times >= 0, times + late_s, times) for times in (first, last))
        arrivals = np.full(len(load), UNSERVED)
        arrivals[: len(self.arrivals)] = np.array(self.arrivals) - self.policy.request_s
        kept = None
        if self.history is not None:
            columns = np.array(self.history, dtype=np.float64).reshape(-1, 4)
            kept = Timeline(
                at_s=columns[:, 0],
                running=columns[:, 1].astype(np.int64),
                waiting=columns[:, 2].astype(np.int64),
                cache_share=columns[:, 3],
            )
        return Served(
            load=load,
            arrival_s=arrivals,
            scheduled_s=np.array(self.scheduled),
            first_s=first,
            last_s=last,
            preemptions=np.array(self.preempted, dtype=np.int64),
            spans=spans_of(self.runs, self.spans),
            computed_tokens=self.computed,
            steps=self.steps,
            busy_s=self.busy_s,
            reading_s=self.reading_s,
            blocked=self.blocked,
            timeline=kept,
        )
