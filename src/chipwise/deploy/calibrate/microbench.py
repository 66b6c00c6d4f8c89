"""Times small graphs with nodes of one kind in the runtime; the cost model's rates are fitted to the times.

A case is a chain of nodes with separate weights, built with the same builder as exported models. It runs in a child
process (``python -m chipwise.deploy.calibrate.microbench``): requests and results are JSON lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.statistics import own_speed
from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.calibrate.microbench_ranking import (
    RANKING_KINDS,
    ranking_op,
)
from chipwise.deploy.calibrate.microbench_sound import SOUND_KINDS, sound_op
from chipwise.deploy.measure import sensors
from chipwise.model.blocks.conv.lower import lower as lower_conv
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise, Function
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp

STORED_BYTES = {"fp32": 4.0, "int8": 1.0, "int4": 0.625}  # bytes per weight, scales included
LARGE_CASE_BYTES = 1e7


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``count`` nodes of one kind. Matrix products alternate between shapes (k, n) and (n, k)."""

    kind: str  # matmul, attention, a norm, gather, conv, elementwise, or one of IMAGE_KINDS, RANKING_KINDS, SOUND_KINDS
    count: int
    rows: int = 1
    k: int = 0
    n: int = 0
    weights: str = "fp32"
    past: int = 0
    heads: int = 1
    kv_heads: int = 1
    head_size: int = 16
    batch: int = 1  # for RANKING_KINDS

    @property
    def large(self) -> bool:
        """Whether building and loading its graph takes far longer than timing it."""
        return self.kind == "matmul" and self.count * self.k * self.n * STORED_BYTES[self.weights] > LARGE_CASE_BYTES

    def ops(self) -> list[Op]:
        """The graph's operators."""
        made: list[Op] = []
        for i in range(self.count):
            k, n = (self.k, self.n) if i % 2 == 0 else (self.n, self.k)
            if self.kind == "matmul":
                made.append(Matmul(m=self.rows, k=k, n=n, weights=self.weights))
            elif self.kind == "attention":
                made.append(
                    AttentionOp(
                        batch=1,
                        query_tokens=self.rows,
                        past_tokens=self.past,
                        heads=self.heads,
                        kv_heads=self.kv_heads,
                        head_size=self.head_size,
                    )
                )
            elif self.kind in ("rmsnorm", "skip_rmsnorm"):
                made.append(NormOp(rows=self.rows, width=self.k, skip=self.kind == "skip_rmsnorm"))
            elif self.kind == "layernorm":
                made.append(NormOp(rows=self.rows, width=self.k, norm="layernorm", bias=True))
            elif self.kind == "gather":
                made.append(EmbeddingOp(tokens=self.rows, width=self.k, rows=self.n))
            elif self.kind in IMAGE_KINDS:
                made.append(self._image_op())
            elif self.kind in RANKING_KINDS:
                made.append(ranking_op(self))
            elif self.kind in SOUND_KINDS:
                made.append(sound_op(self))
            elif self.kind == "conv":
                made.append(lower_conv(self.n, d_model=self.k, batch=1, query_tokens=self.rows))
            else:
                inputs = 2 if self.kind in ("mul", "add") else 1
                made.append(Elementwise(function=FUNCTIONS[self.kind], elements=self.rows * self.k, inputs=inputs))
        return made

    def _image_op(self) -> Op:
        """Operator of image classifiers: ``rows`` positions with ``k`` values; convolutions output ``n`` channels."""
        if self.kind in ("attention.full", "attention.biased"):
            return AttentionOp(
                batch=1,
                query_tokens=self.rows,
                past_tokens=self.past,
                heads=self.heads,
                kv_heads=self.heads,
                head_size=self.head_size,
                rope=False,
                causal=False,
                cross=self.past > 0,
                biases=int(self.kind == "attention.biased"),
            )
        if self.kind == "conv.image":
            return ConvOp(
                batch=1, positions=(self.rows // 2) ** 2, in_channels=self.k, out_channels=self.n, taps=9, bias=True
            )
        if self.kind == "pool":
            return PoolOp(batch=1, positions=self.rows, width=self.k)
        return Elementwise(function=FUNCTIONS[self.kind], elements=self.rows * self.k)


FUNCTIONS: Mapping[str, Function] = {name: name for name in get_args(Function)}
IMAGE_KINDS = ("attention.full", "attention.biased", "conv.image", "pool", "split", "transpose", "pad")


def cases(own: Iterable[Case] = (), *, large: bool = False) -> list[Case]:
    """All cases of one calibration, small sizes first.

    Args:
        own: Cases for nodes that only models of one kind have.
        large: Include matrices that exceed the caches.
    """
    return [*_matmul_cases(), *_attention_cases(), *_other_cases(), *own, *(_large_cases() if large else ())]


def image_cases() -> Iterator[Case]:
    """Nodes that only image classifiers have."""
    for rows, heads, head_size in (
        (5, 1, 16), (5, 4, 16), (17, 1, 32), (17, 4, 16), (17, 2, 64), (50, 1, 16), (50, 2, 32), (50, 4, 64),
        (50, 8, 16), (16, 2, 16), (65, 4, 32), (101, 2, 16), (197, 1, 16), (197, 2, 32), (197, 4, 64),
    ):  # fmt: skip
        for kind in ("attention.full", "attention.biased"):
            yield Case(kind=kind, count=4, rows=rows, heads=heads, kv_heads=heads, head_size=head_size)
    for rows, past, heads, size in ((1, 9, 2, 16), (1, 36, 4, 32), (7, 9, 4, 16), (7, 36, 2, 32), (16, 196, 4, 16)):
        yield Case(kind="attention.full", count=4, rows=rows, past=past, heads=heads, kv_heads=heads, head_size=size)
    for side, into, out in ((28, 1, 8), (28, 1, 32), (14, 8, 16), (14, 32, 64), (32, 3, 16), (64, 3, 8), (16, 16, 16)):
        yield Case(kind="conv.image", count=2, rows=side, k=into, n=out)
    for kind in ("pool", "split", "transpose", "pad"):
        for rows, width in ((4, 96), (16, 192), (17, 48), (50, 96), (50, 384), (197, 60), (197, 384)):
            yield Case(kind=kind, count=8, rows=rows, k=width)
    for rows, k, n in (
        (4, 196, 64), (16, 49, 48), (49, 16, 96), (5, 64, 192), (17, 48, 96), (50, 64, 256), (197, 96, 96),
    ):  # fmt: skip
        for weights in STORED_BYTES:
            yield Case(kind="matmul", weights=weights, count=4, rows=rows, k=k, n=n)
    for rows, k in ((1, 32), (1, 64), (1, 256)):
        yield Case(kind="sin", count=8, rows=rows, k=k)
    for kind in ("layernorm", "gelu", "add", "mul"):
        for rows, k in ((5, 64), (17, 48), (17, 192), (50, 96), (197, 128)):
            yield Case(kind=kind, count=16, rows=rows, k=k)


def _large_cases() -> Iterator[Case]:
    for weights, goals in (("fp32", (1.28e8, 2.56e8, 5.12e8)), ("int8", (1.28e8, 2.56e8)), ("int4", (1.28e8, 2.56e8))):
        for goal in goals:
            count = 2 * round(goal / (4096 * 1024 * STORED_BYTES[weights]) / 2)
            yield Case(kind="matmul", weights=weights, count=count, rows=1, k=1024, n=4096)


def _matmul_cases() -> Iterator[Case]:
    shapes = (
        (64, 64), (64, 192), (128, 128), (96, 512), (256, 256), (160, 640), (128, 1024), (224, 768), (256, 1024),
        (512, 512),
    )  # fmt: skip
    for weights, bytes_each in STORED_BYTES.items():
        for k, n in (*shapes, (256, 4096), (512, 2048)):
            size = k * n * bytes_each
            counts = {min(48, max(4, 2 * round(goal / size / 2))) for goal in (2e5, 1.5e6, 8e6)}
            for count in sorted(counts):
                yield Case(kind="matmul", weights=weights, count=count, rows=1, k=k, n=n)
        for goal in (6e5, 3e6, 5e6, 12e6, 2e7, 3e7, 4.5e7, 6.5e7):
            yield Case(
                kind="matmul",
                weights=weights,
                count=max(2, 2 * round(goal / (512 * 1024 * bytes_each) / 2)),
                k=512,
                n=1024,
            )
        for rows, k, n in (
            *((64, k, n) for k, n in (*shapes, (512, 1536))),
            *((rows, k, n) for rows in (16, 160) for k, n in ((64, 192), (128, 512), (256, 1024))),
        ):
            yield Case(kind="matmul", weights=weights, count=4, rows=rows, k=k, n=n)
        for count in (8, 24):
            yield Case(kind="matmul", weights=weights, count=count, rows=64, k=512, n=768)


def _attention_cases() -> Iterator[Case]:
    for past, heads, kv_heads, head_size in (
        (8, 1, 1, 16), (8, 8, 8, 64), (96, 1, 1, 32), (96, 4, 4, 16), (96, 2, 1, 64), (96, 4, 4, 32), (96, 8, 2, 32),
        (96, 8, 8, 16), (96, 4, 2, 64), (96, 8, 8, 64), (96, 8, 1, 64), (400, 2, 2, 32), (400, 8, 8, 32),
        (400, 4, 1, 64),
    ):  # fmt: skip
        yield Case(kind="attention", count=6, past=past, heads=heads, kv_heads=kv_heads, head_size=head_size)
    for rows, heads, kv_heads, head_size in (
        (16, 1, 1, 16), (16, 8, 8, 32), (64, 1, 1, 32), (64, 1, 1, 64), (64, 2, 1, 16), (64, 4, 4, 16), (64, 4, 2, 32),
        (64, 8, 8, 16), (64, 8, 2, 32), (64, 4, 4, 64), (64, 8, 8, 64), (64, 8, 1, 64), (200, 1, 1, 32),
        (200, 4, 4, 32), (200, 4, 1, 64),
    ):  # fmt: skip
        yield Case(kind="attention", count=4, rows=rows, heads=heads, kv_heads=kv_heads, head_size=head_size)


def _other_cases() -> Iterator[Case]:
    for kind in ("relu", "gelu", "gelu_tanh", "silu", "mul", "add"):
        for rows, k in ((1, 64), (1, 512), (1, 2048), (64, 64), (64, 256), (64, 1024), (64, 2048)):
            yield Case(kind=kind, count=16, rows=rows, k=k)
    for kind in ("rmsnorm", "skip_rmsnorm", "layernorm"):
        for rows, k in ((1, 64), (1, 256), (1, 512), (16, 128), (64, 64), (64, 256), (64, 512)):
            yield Case(kind=kind, count=16, rows=rows, k=k)
    for rows, k in ((1, 64), (1, 512), (64, 64), (64, 512)):
        yield Case(kind="gather", count=8, rows=rows, k=k, n=4096)
    for rows, k, taps in ((1, 64, 2), (1, 64, 4), (1, 512, 4), (64, 64, 2), (64, 64, 4), (64, 256, 4), (64, 512, 2)):
        yield Case(kind="conv", count=8, rows=rows, k=k, n=taps)
    for count in (2, 48):
        yield Case(kind="relu", count=count, rows=1, k=16)


class Bench:
    """Builds and times cases in this process."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._generator = np.random.default_rng(0)
        self._matrices: dict[tuple[str, int, int], dict[str, AnyArray]] = {}

    def time(self, case: Case, *, seconds: float) -> float:
        """Seconds of one run of the graph on an undisturbed machine, from runs over about ``seconds``, at least 7.

        With one thread this is processor time, which excludes the time that other processes use the core.
        """
        import onnxruntime as ort

        from chipwise.deploy.calibrate.case_graphs import graph_of
        from chipwise.deploy.runtimes.onnx_session import session_options

        model, feeds, outputs = graph_of(case, self._generator, self._matrices)
        session = ort.InferenceSession(model, session_options(self._threads), providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_input(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        for name, value in outputs.items():
            binding.bind_output(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        samples: list[float] = []
        clock = time.process_time if self._threads == 1 else time.perf_counter
        for _ in range(2):
            session.run_with_iobinding(binding)
        end = clock() + seconds
        while len(samples) < 7 or clock() < end:
            start = clock()
            session.run_with_iobinding(binding)
            samples.append(clock() - start)
        return own_speed(samples)


class _Worker:
    """Times cases in one process. See ``core/workers.py`` for the protocol."""

    bench: Bench
    seconds: float

    def start(self, setup: Message) -> None:
        """Pins this process to cores and opens the runtime with the given threads."""
        sensors.pin(setup["cpus"])
        self.bench, self.seconds = Bench(threads=setup["threads"]), setup["seconds"]

    def run(self, job: Message, _report: Report) -> float:
        """Seconds of one run of a case."""
        return self.bench.time(Case(**job), seconds=self.seconds)


def main() -> None:
    """Serves jobs from standard input."""
    worker = _Worker()
    serve(worker.run, start=worker.start)


if __name__ == "__main__":
    main()
