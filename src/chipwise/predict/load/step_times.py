"""Seconds of any step that a scheduler may form, from a table that is computed once per deployment.

A step decodes ``n`` sequences and processes some chunks of prompts. It has four kinds of kernels, each of which depends
on only a few numbers. Matrix products and other kernels depend on the number of tokens in the step, and the head on the
number of sequences. Attention of decoding sequences depends on their number and mean context; attention of a prompt
chunk on its length and on the number of cached positions before it. Each kind is predicted on a grid by the same code
as in ``chipwise estimate``. Between grid points, times are interpolated linearly.
``tests/unit/predict/load/test_step_times.py`` checks the interpolation error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.errors import Unsupported
from chipwise.predict.served import image_law
from chipwise.predict.served.batching import Constants, constants
from chipwise.predict.served.groups import Group, GroupCost, cost_groups, groups_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.setting import Step
from chipwise.predict.served.steps import Pass, PassTimes, class_of, time_passes

_FEW = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17, 20, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 193]
_TILES = [edge + past for edge in range(256, 2049, 128) for past in (0, 1)]  # grid points at tile edges
_TOKENS = np.array(_FEW + _TILES + [2560, 3072, 4096, 6144, 8192, 12288, 16384, 32768])
_SEQUENCES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096])
_CONTEXTS = np.array([16, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072])
_CHUNKS = np.array([1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768])
_PASTS = np.array([0, 512, 2048, 8192, 32768, 131072])


@dataclass(slots=True, kw_only=True)
class StepTimes:
    """Step times of one replica in seconds; in a pipeline, step times of one microbatch.

    ``body_s`` lists seconds by number of tokens and ``head_s`` lists seconds by number of sequences, both from 0 on.
    ``host_s`` is the host time per step, and ``sequence_host_s`` the host time per decoding sequence. A step computes
    ``width`` tokens per decoding sequence: one, or with speculative decoding the drafted tokens and one more. ``draft``
    holds the step times of the draft model, which runs one pass per drafted token.
    """

    body_s: list[float]
    head_s: list[float]
    contexts: list[float]
    sequences: Float64Array
    attention_s: Float64Array  # (sequences, contexts)
    chunks: list[float]
    pasts: list[float]
    chunk_s: list[list[float]]  # (pasts, chunks)
    host_s: float
    sequence_host_s: float
    decode_halfwidth: float  # log half-width of 90 % intervals
    prompt_halfwidth: float | None  # None if not validated
    provenance: str = ""
    width: int = 1
    draft: StepTimes | None = None
    _rows: dict[int, tuple[float, list[float]]] = field(default_factory=dict)

    @property
    def most_tokens(self) -> int:
        """Number of tokens of the largest step in the table."""
        return len(self.body_s) - 1

    def scaled(self, factor: float) -> StepTimes:
        """A copy with all times multiplied by ``factor``."""
        return replace(
            self,
            body_s=[factor * value for value in self.body_s],
            head_s=[factor * value for value in self.head_s],
            attention_s=factor * self.attention_s,
            chunk_s=[[factor * value for value in row] for row in self.chunk_s],
            host_s=factor * self.host_s,
            sequence_host_s=factor * self.sequence_host_s,
            draft=None if self.draft is None else self.draft.scaled(factor),
            _rows={},
        )

    def drafted_by(self, draft: StepTimes) -> StepTimes:
        """Adds the step times ``draft`` of a draft model. The host prepares the passes of both models together."""
        return replace(self, draft=replace(draft, host_s=0.0, sequence_host_s=0.0, _rows={}), _rows={})

    def row(self, n: int) -> tuple[float, list[float]]:
        """Seconds of a step that decodes ``n`` sequences: the total without attention, and a list with the seconds of
        attention for each length in ``contexts``.
        """
        found = self._rows.get(n)
        if found is None:
            rows = n * self.width
            base = self.body(rows) + self.head_s[min(rows, len(self.head_s) - 1)]
            base += self.host_s + self.sequence_host_s * n
            columns = self.attention_s
            attention = [float(np.interp(n, self.sequences, columns[:, j])) for j in range(columns.shape[1])]
            found = self._rows[n] = (base, attention)
        return found

    def decode_s(self, n: int, context: float) -> float:
        """Seconds of a step that decodes ``n`` sequences with ``context`` cached positions on average."""
        base, attention = self.row(n)
        alone = base + interpolated(self.contexts, attention, context)
        return alone if self.draft is None else alone + (self.width - 1) * self.draft.decode_s(n, context)

    def chunk_attention_s(self, tokens: int, past: int) -> float:
        """Seconds of attention for a chunk of ``tokens`` positions that follow ``past`` cached positions."""
        pasts = self.pasts
        if past <= 0:
            return interpolated(self.chunks, self.chunk_s[0], tokens)
        j = min(bisect_right(pasts, past), len(pasts) - 1)
        low, high = pasts[j - 1], pasts[j]
        before = interpolated(self.chunks, self.chunk_s[j - 1], tokens)
        after = interpolated(self.chunks, self.chunk_s[j], tokens)
        return before + (after - before) * (past - low) / (high - low)

    def mixed_s(self, n: int, context: float, chunks: Sequence[tuple[int, int]], *, ending: int = 1) -> float:
        """Seconds of a step that decodes ``n`` sequences and processes ``chunks`` of prompts.

        Args:
            n: Number of decoding sequences.
            context: Mean number of cached positions of these sequences.
            chunks: Length of each chunk, and number of cached positions before it.
            ending: Number of chunks that complete their prompt and so give a first token.
        """
        decoded = n * self.width
        tokens = decoded + sum(length for length, _ in chunks)
        rows = min(decoded + ending, len(self.head_s) - 1)
        total = self.body(tokens) + self.head_s[rows] + self.host_s + self.sequence_host_s * n
        if n:
            total += interpolated(self.contexts, self.row(n)[1], context)
        for length, past in chunks:
            total += self.chunk_attention_s(length, past)
        if self.draft is not None:
            total += (self.width - 1) * self.draft.decode_s(n, context) if n else 0.0
            total += self.draft.mixed_s(0, 0, chunks, ending=ending) if chunks else 0.0
        return total

    def body(self, tokens: int) -> float:
        """Seconds of all kernels except attention and head, for ``tokens`` positions.

        Beyond the table, the seconds are proportional to the number of positions.
        """
        most = len(self.body_s) - 1
        if tokens <= most:
            return self.body_s[tokens]
        return self.body_s[most] * tokens / most


def interpolated(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    """``values`` at the point ``at``: linear between and beyond grid points, but constant below the first point."""
    if at <= grid[0]:
        return values[0]
    j = min(bisect_right(grid, at), len(grid) - 1)
    low = grid[j - 1]
    return values[j - 1] + (values[j] - values[j - 1]) * (at - low) / (grid[j] - low)


def step_times(
    requests: Sequence[Request],
    *,
    most_tokens: int = 8192,
    most_sequences: int = 1024,
    longest: int = 32768,
    width: int = 1,
) -> list[StepTimes | Unsupported]:
    """The step times of each request's deployment. The kernels of all deployments are predicted together.

    Args:
        requests: Each request states model, device, runtime, formats and plan. Step times get the intervals of the
            request's estimate.
        most_tokens: Number of tokens of the largest step.
        most_sequences: Maximum number of sequences that a step decodes.
        longest: Positions of the longest sequence.
        width: Number of tokens that a step computes per decoding sequence.

    Raises:
        ChipwiseError: A name in a request is unknown, or a degree does not divide the model.
    """
    groups = groups_of(requests)
    sizes = {"most_tokens": most_tokens, "most_sequences": most_sequences, "longest": longest, "width": width}
    if len(groups) < len(requests):  # some deployments are equal: answer one by one
        return [step_times([each], **sizes)[0] for each in requests]
    known = constants()
    asked = {request.prompt_tokens for request in requests if request.prompt_tokens <= most_tokens}
    grids = _Grids.of(most_tokens, most_sequences, longest, also=sorted(asked))
    try:
        timed = time_passes([each for group in groups for each in grids.passes(group, width)])
    except Unsupported as error:
        if len(groups) == 1:
            return [error]
        return [step_times([each], **sizes)[0] for each in requests]
    costs = cost_groups(groups)
    answers: list[StepTimes | Unsupported] = [Unsupported("not priced")] * len(requests)
    for i, (group, cost) in enumerate(zip(groups, costs, strict=True)):
        row = group.rows[0]
        if isinstance(cost, Unsupported):
            answers[row] = cost
            continue
        table = _table(cost, timed[3 * i : 3 * i + 3], grids, known, width)
        if group.device.taught is not None:
            table = _following(table, float(cost.step_s[0] if group.generates else cost.prefill_s[0]), group)
        answers[row] = table
    return answers


def _following(table: StepTimes, taught_s: float, group: Group) -> StepTimes:
    """``table``, scaled so that the step of ``group`` takes ``taught_s``, a time corrected by measurements."""
    if group.generates:
        n = int(group.replica_batch[0])
        own = table.decode_s(n, float(group.prompt_tokens[0] + group.new_tokens[0] // 2))
    else:
        own = table.mixed_s(0, 0, [(int(group.prompt_tokens[0]), 0)])
    return table.scaled(taught_s / own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grids:
    """The sizes for which kernel times are predicted."""

    tokens: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    contexts: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    pasts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, most_tokens: int, most_sequences: int, longest: int, *, also: Sequence[int]) -> _Grids:
        """Grids that reach at least the given sizes and also contain the prompt lengths ``also``."""
        return cls(
            tokens=np.union1d(_until(_TOKENS, max(most_tokens, most_sequences)), also).astype(np.int64),
            sequences=_until(_SEQUENCES, most_sequences),
            contexts=_until(_CONTEXTS, longest),
            chunks=np.union1d(_until(_CHUNKS, most_tokens), also).astype(np.int64),
            pasts=_until(_PASTS, longest),
        )

    def passes(self, group: Group, width: int) -> tuple[Pass, Pass, Pass]:
        """Three passes to predict: for kernels other than attention, for attention of decoding sequences, and for
        attention of prompt chunks.
        """
        if group.setting.arch.encoder:
            raise Unsupported(f"{group.setting.arch.name} has an encoder and a decoder; such models cannot be replayed")
        setting, device = group.setting, group.device
        if not setting.arch.reads_tokens:
            return self._of_stem(group)
        body = Step(batch=self.tokens, query_tokens=np.ones_like(self.tokens), past_tokens=np.ones_like(self.tokens))
        n, context = (axis.ravel() for axis in np.meshgrid(self.sequences, self.contexts, indexing="ij"))
        decode = Step(batch=n, query_tokens=np.full_like(n, width), past_tokens=context)
        past, chunk = (axis.ravel() for axis in np.meshgrid(self.pasts, self.chunks, indexing="ij"))
        if not group.generates:
            body = replace(body, past_tokens=0 * self.tokens)
            decode = replace(decode, past_tokens=0 * n)
            past = 0 * past
        prompt = Step(batch=np.ones_like(chunk), query_tokens=chunk, past_tokens=past)
        return (
            Pass(setting=setting, step=body, device=device, rows=len(self.tokens)),
            Pass(setting=setting, step=decode, device=device, rows=len(n)),
            Pass(setting=setting, step=prompt, device=device, rows=len(chunk)),
        )

    def _of_stem(self, group: Group) -> tuple[Pass, Pass, Pass]:
        """The passes to predict for an image or ranking model, for different numbers of equal requests."""
        positions = int(group.prompt_tokens[0])

        def requests(count: npt.NDArray[np.int64]) -> Pass:
            step = Step(batch=count, query_tokens=np.full_like(count, positions), past_tokens=0 * count)
            return Pass(setting=group.setting, step=step, device=group.device, rows=len(count))

        alone = requests(np.ones(1, np.int64))  # the other two passes are not needed
        return requests(self.tokens), alone, alone


def _until(grid: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """The points of ``grid`` up to the first point that is at least ``most``; at least two points."""
    end = int(np.searchsorted(grid, most)) + 1
    return grid[: max(end, 2)]


def _table(cost: GroupCost, timed: Sequence[PassTimes], grids: _Grids, known: Constants, width: int) -> StepTimes:
    group, first = cost.group, cost.ttft_log_halfwidth
    runtime, tp = group.setting.runtime, group.setting.plan.tp
    body, decode, prompt = timed
    shape, chunks = (len(grids.sequences), len(grids.contexts)), (len(grids.pasts), len(grids.chunks))
    tabulated = partial(
        StepTimes,
        contexts=grids.contexts.tolist(),
        sequences=grids.sequences.astype(np.float64),
        chunks=grids.chunks.tolist(),
        pasts=grids.pasts.tolist(),
        decode_halfwidth=float(cost.log_halfwidth[0]),
        prompt_halfwidth=None if first is None else float(first[0]),
        provenance=cost.provenance,
    )
    tokens = np.arange(int(grids.tokens[-1]) + 1)
    if not group.setting.arch.reads_tokens:  # requests count as one token each
        if image_law.answers(group.setting):
            passed, host_s = image_law.pass_times(group.setting, group.device, grids.tokens)[0], 0.0
        else:
            passed, host_s = known.device_s(body, runtime), float(known.host_step_s(runtime, sequences=0, tp=1))
        return tabulated(
            body_s=np.interp(tokens, grids.tokens, passed, left=0.0).tolist(),
            head_s=[0.0] * (int(grids.sequences[-1]) + 1),
            attention_s=np.zeros(shape),
            chunk_s=np.zeros(chunks).tolist(),
            host_s=host_s,
            sequence_host_s=0.0,
        )

    def seconds(times: PassTimes, sort: str) -> Float64Array:
        chosen = _only(times, sort)
        return known.device_s(chosen, runtime) if chosen.parts else np.zeros(times.figures.shape[2])

    host_s = float(known.host_step_s(runtime, sequences=0, tp=tp))
    counts = np.arange(width * int(grids.sequences[-1]) + 1)
    return tabulated(
        body_s=np.interp(tokens, grids.tokens, seconds(body, "body")).tolist(),
        head_s=np.interp(counts, grids.tokens, seconds(body, "head")).tolist(),
        attention_s=seconds(decode, "attention").reshape(shape),
        chunk_s=seconds(prompt, "attention").reshape(chunks).tolist(),
        host_s=host_s,
        sequence_host_s=float(known.host_step_s(runtime, sequences=1, tp=tp)) - host_s,
        width=width,
    )


def _only(times: PassTimes, sort: str) -> PassTimes:
    """Only the kernels of one kind in a pass: ``attention``, ``head``, or ``body`` for all other kernels."""
    kept = [i for i, part in enumerate(times.parts) if _sort(part.place, part.op.kind) == sort]
    chosen = PassTimes.of(
        tuple(times.parts[i] for i in kept), times.figures[:, kept], tuple(times.situations[i] for i in kept)
    )
    return replace(chosen, saved=times.saved)


def _sort(place: str, kind: str) -> str:
    if class_of(kind) == "attention":
        return "attention"
    return "head" if place.startswith("head.") else "body"
