"""Seconds of each block (attention or FFN) at each size, measured in the serving runtime or predicted for a chip.

A block is timed inside the whole model, with realistic caches. Two models are timed: in one, all attention (or
feed-forward) blocks have the size in question; the other has none of these blocks. The difference between their times,
divided by the number of these blocks, is the time of one block. Models are timed in alternation and in processor time,
so that other processes on the machine have little influence.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.measure.worker import requested
from chipwise.deploy.runtimes import Session
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime
from chipwise.design.shrink.sizes import Sizes, blocks, cut_arch, generates, whole_sizes
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

KINDS = ("attention", "ffn")
Times = dict[str, float]  # seconds: ttft of the pass over the text, tpot of a decoder's step, request of everything
_TABLE_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Cost model of TTFT, TPOT or a request's time: a constant, plus seconds for the kind and size of each block."""

    base_s: float
    block_s: Mapping[str, Mapping[int, float]]

    def of(self, kind: str, size: int) -> float:
        """Seconds of one block of this kind and size.

        Raises:
            InputError: The size was not timed.
        """
        if size not in self.block_s[kind]:
            known = ", ".join(map(str, self.block_s[kind]))
            raise InputError(f"no time is known for {kind} of size {size}; known sizes: {known}")
        return self.block_s[kind][size]

    def cut_s(self, arch: ArchSpec, sizes: Sizes) -> float:
        """Seconds of the pruned model with these sizes."""
        return self.base_s + sum(self.of(kind, sizes.block(i, kind)) for i, kind in blocks(arch))


def measure_costs(
    arch: ArchSpec,
    options: Mapping[str, Sequence[int]],
    clock: Clock,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Costs]:
    """Times each kind of block at every size; returns the cost models (:class:`Costs`) of TTFT, TPOT and request time.

    Args:
        arch: The original.
        options: Sizes to time, by kind of block; the full size and 0 are always timed.
        clock: Measures or predicts the times of models.
        on_progress: Called with the number of finished timings and of all timings.
    """
    if not generates(arch):  # looking up a token in the table takes the same time at any size
        arch = arch.of_vocabulary(min(arch.vocab_size, _TABLE_ROWS))
    whole = whole_sizes(arch)
    variants: dict[tuple[str, int], ArchSpec] = {}
    counts = {kind: sum(k == kind for _, k in blocks(arch)) for kind in KINDS}
    for kind in KINDS:
        if not counts[kind]:
            continue
        own = whole.of_kind(kind)
        for size in sorted({0, max(own), *options.get(kind, ())}):
            sizes = whole.with_kind(kind, tuple(min(size, top) for top in own))
            variants[kind, size] = cut_arch(arch, sizes)
    taken = clock.variants(list(variants.values()), on_progress)
    return {
        name: _by_block({key: times[name] for key, times in zip(variants, taken, strict=True)}, counts)
        for name in taken[0]
    }


def _by_block(found: Mapping[tuple[str, int], float], counts: Mapping[str, int]) -> Costs:
    """Computes costs of single blocks from times of models in which all blocks of one kind have the same size."""
    block_s: dict[str, dict[int, float]] = {kind: {0: 0.0} for kind in KINDS}
    full_s = []
    for (kind, size), value in found.items():
        block_s[kind][size] = max(0.0, value - found[kind, 0]) / counts[kind]
        if size == max(other for of, other in found if of == kind):
            full_s.append(value)
    every = sum(counts[kind] * max(sizes.values()) for kind, sizes in block_s.items())
    return Costs(base_s=max(0.0, float(np.mean(full_s)) - every), block_s=block_s)


class Clock(Protocol):
    """Measures or predicts times of models on one chip."""

    @property
    def about(self) -> Mapping[str, object]:
        """Identifies the chip in stored results, as JSON values."""
        ...

    @property
    def where(self) -> str:
        """The chip to which the times apply, as text for messages, such as ``on this machine``."""
        ...

    def variants(self, archs: Sequence[ArchSpec], on_progress: Callable[[int, int], None]) -> list[Times]:
        """Times of many models that differ in the size of one kind of block."""
        ...

    def requests(self, archs: Sequence[ArchSpec]) -> list[Times]:
        """Times of a few models, more precise than in :meth:`variants`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalClock:
    """Times models on this machine: median processor seconds, measured in alternation on one thread.

    Models have random weights. An encoder reads a text of ``prompt_tokens`` tokens; a decoder also generates.
    """

    workload: Workload
    weights: str = "fp32"  # weight format of the served model
    about: Mapping[str, object] = field(default_factory=dict)
    where: str = "on this machine"

    def variants(self, archs: Sequence[ArchSpec], on_progress: Callable[[int, int], None]) -> list[Times]:
        """Times each model for one second, in three rounds."""
        return _timed(archs, self.workload, self.weights, 1.0, 3, on_progress)

    def requests(self, archs: Sequence[ArchSpec]) -> list[Times]:
        """Times each model for two seconds, in four rounds."""
        return _timed(archs, self.workload, self.weights, 2.0, 4, lambda done, total: None)


def request_times(session: Session, workload: Workload, prompt: AnyArray, *, encodes: bool) -> Times:
    """Processor seconds of one request, its TTFT and its TPOT."""
    start = time.process_time()
    logits = session.prefill(prompt)
    first = time.process_time()
    steps = 0 if encodes else workload.new_tokens - 1
    for _ in range(steps):
        logits = session.decode(logits.argmax(axis=-1)[:, None])
    end = time.process_time()
    found = {"ttft": first - start, "request": end - start}
    return found | {"tpot": (end - first) / steps} if steps else found


def _timed(
    archs: Sequence[ArchSpec],
    workload: Workload,
    weights: str,
    seconds: float,
    rounds: int,
    on_progress: Callable[[int, int], None],
) -> list[Times]:
    """Median processor seconds of each model, measured in alternation."""
    samples: list[list[Times]] = [[] for _ in archs]
    with tempfile.TemporaryDirectory() as room:
        files: dict[ArchSpec, Path] = {}
        for arch in archs:
            if arch not in files:
                path = Path(room) / f"{len(files)}.onnx"
                files[arch] = export(Design(arch=arch, weights=weights), random_weights(arch, seed=0), path)
        for turn in range(rounds):
            order = range(len(archs)) if turn % 2 == 0 else range(len(archs) - 1, -1, -1)
            for done, i in enumerate(order):
                samples[i] += _samples(files[archs[i]], archs[i], workload, seconds / rounds)
                on_progress(turn * len(archs) + done + 1, rounds * len(archs))
    return [{name: float(np.median([one[name] for one in values])) for name in values[0]} for values in samples]


def _samples(path: Path, arch: ArchSpec, workload: Workload, seconds: float) -> list[Times]:
    """Processor seconds of requests, repeated for about ``seconds`` (at least once) after loading and warm-up."""
    session = OnnxRuntime().open(path, capacity=workload.total_tokens, batch=workload.batch, threads=1, options={})
    prompt = requested(session, np.random.default_rng(0), batch=workload.batch, prompt=workload.prompt_tokens)
    encodes = not generates(arch)
    request_times(session, workload, prompt, encodes=encodes)
    found: list[Times] = []
    until = time.process_time() + seconds
    while not found or time.process_time() < until:
        found.append(request_times(session, workload, prompt, encodes=encodes))
    return found
