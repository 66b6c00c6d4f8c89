"""Times small graphs with nodes of one kind in the runtime; the cost model's rates are fitted to the times.

A case is a chain of nodes with separate weights, built with the same builder as exported models. It runs in a child
process (``python -m chipwise.deploy.calibrate.microbench``): requests and results are JSON lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.statistics import own_speed
from chipwise.core.workers import Message, Report, serve
from chipwise.deploy.measure import sensors
from chipwise.model.arch.mixers import ConvModule
from chipwise.model.blocks.conv.lower import lower as lower_conv
from chipwise.model.blocks.conv_module.lower import lower_filter
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise, Function
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp

STORED_BYTES = {"fp32": 4.0, "int8": 1.0, "int4": 0.625}  # bytes per weight, scales included
LARGE_CASE_BYTES = 1e7
LOADED = 16  # graphs that stay loaded for their next round


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
    batch: int = 1  # only used by RANKING_KINDS

    @property
    def large(self) -> bool:
        """Whether building and loading its graph takes far longer than timing it."""
        return self.stored_bytes > LARGE_CASE_BYTES

    @property
    def stored_bytes(self) -> float:
        """Bytes of its matrices; 0 for other kinds."""
        return self.count * self.k * self.n * STORED_BYTES[self.weights] if self.kind == "matmul" else 0.0

    def ops(self) -> list[Op]:
        """The graph's operators."""
        shapes = (self.k, self.n), (self.n, self.k)
        return [self._op(*shapes[i % 2]) for i in range(self.count)]

    def _op(self, k: int, n: int) -> Op:
        """The node's operator, for ``rows`` positions of ``k`` values each.

        In ranking models, the positions are candidates, which follow a history of ``past`` items. For ``conv.image``,
        ``n`` is the number of output channels. For other convolutions, it is the number of taps; for ``bag``, the
        number of ids in each bag.
        """
        rows, width = self.rows, self.k
        match self.kind:
            case "matmul":
                return Matmul(m=rows, k=k, n=n, weights=self.weights)
            case "attention" | "attention.full" | "attention.biased":
                text = self.kind == "attention"
                return AttentionOp(
                    batch=1,
                    query_tokens=rows,
                    past_tokens=self.past,
                    heads=self.heads,
                    kv_heads=self.kv_heads if text else self.heads,
                    head_size=self.head_size,
                    rope=text,
                    causal=text,
                    cross=not text and self.past > 0,
                    biases=int(self.kind == "attention.biased"),
                )
            case "rmsnorm" | "skip_rmsnorm":
                return NormOp(rows=rows, width=width, skip=self.kind == "skip_rmsnorm")
            case "layernorm":
                return NormOp(rows=rows, width=width, norm="layernorm", bias=True)
            case "gather":
                return EmbeddingOp(tokens=rows, width=width, rows=self.n)
            case "conv":
                return lower_conv(self.n, d_model=width, batch=1, query_tokens=rows)
            case "conv.centred":
                return lower_filter(ConvModule(taps=self.n), d_model=width, batch=1, positions=rows)
            case "conv.image":
                positions = (rows // 2) ** 2
                return ConvOp(batch=1, positions=positions, in_channels=width, out_channels=self.n, taps=9, bias=True)
            case "pool":
                return PoolOp(batch=1, positions=rows, width=width)
            case "bag":
                return EmbeddingBagOp(bags=rows, ids=self.n, width=width, rows=100)
            case "dot":
                return RowDotOp(rows=rows, width=width)
        if self.kind in ATTENTION:
            _, kind, place = self.kind.split(".")
            return RequestAttentionOp(
                batch=self.batch,
                history=self.past,
                candidates=rows,
                heads=self.heads,
                head_size=self.head_size,
                whole=place == "whole",
                pointwise=kind == "pointwise",
            )
        return Elementwise(function=FUNCTIONS[self.kind], elements=rows * width)


FUNCTIONS: Mapping[str, Function] = {name: name for name in get_args(Function)}
IMAGE_KINDS = ("attention.full", "attention.biased", "conv.image", "pool", "split", "transpose", "pad")
ATTENTION = tuple(f"attention.{kind}.{place}" for kind in ("softmax", "pointwise") for place in ("whole", "last"))
RANKING_KINDS = (*ATTENTION, "bag", "dot", "copy")
SOUND_KINDS = ("conv.centred", "sigmoid")
POSITIONS = ((50, 32), (100, 64), (100, 128), (200, 48), (200, 96), (400, 64))  # positions and width


def cases(own: Iterable[Case] = (), *, large: bool = False) -> list[Case]:
    """All cases of one calibration, small sizes first.

    Args:
        own: Cases for nodes that only models of one kind have.
        large: Include matrices that exceed the caches.
    """
    return [*_matmul_cases(), *_attention_cases(), *_other_cases(), *own, *(_large_cases() if large else ())]


def with_fewer_large(chosen: Sequence[Case]) -> list[Case]:
    """``chosen`` without the large cases, except the largest of each weight format.

    The large cases take half of the time of a calibration's small graphs, and matter only for models that exceed the
    caches.
    """
    largest = {case.weights: case for case in sorted(chosen, key=lambda case: case.stored_bytes) if case.large}
    return [case for case in chosen if not case.large or case == largest[case.weights]]


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


def ranking_cases() -> Iterator[Case]:
    """Nodes that only ranking models have."""
    for kind in ATTENTION:
        for batch, past, rows, heads, head_size in (
            (1, 16, 1, 1, 16), (1, 50, 1, 2, 32), (1, 100, 4, 4, 64), (1, 50, 32, 2, 32), (1, 16, 128, 2, 64),
            (1, 50, 128, 1, 32), (1, 50, 128, 4, 16), (1, 100, 32, 2, 32), (1, 50, 512, 2, 32), (1, 100, 512, 1, 64),
            (8, 100, 1, 4, 32), (32, 50, 1, 2, 32), (128, 16, 1, 1, 32), (128, 50, 1, 2, 16),
            (1, 50, 1, 4, 8), (8, 50, 1, 4, 16), (32, 50, 1, 1, 8), (128, 50, 1, 4, 16), (512, 50, 1, 1, 64),
            (512, 50, 1, 2, 8),
        ):  # fmt: skip
            yield Case(kind=kind, count=2, batch=batch, past=past, rows=rows, heads=heads, head_size=head_size)
    for rows, width in ((17, 24), (51, 64), (178, 32), (178, 128), (562, 64), (6_528, 32), (26_112, 64)):
        yield Case(kind="bag", count=2, rows=rows, k=width, n=3)
        yield Case(kind="copy", count=8, rows=rows, k=width)
        yield Case(kind="dot", count=4, rows=rows, k=width)
        yield Case(kind="gather", count=4, rows=rows, k=width, n=4096)
        for kind in ("rmsnorm", "skip_rmsnorm", "layernorm", "mul", "add", "silu", "gelu", "relu"):
            yield Case(kind=kind, count=4, rows=rows, k=width)
    for weights in ("fp32", "int8"):
        for rows, k, n in (
            (17, 32, 96), (51, 64, 192), (128, 128, 64), (178, 64, 256), (562, 48, 192), (2_048, 64, 64),
            (6_528, 32, 96), (26_112, 64, 192),
        ):  # fmt: skip
            yield Case(kind="matmul", weights=weights, count=4, rows=rows, k=k, n=n)


def sound_cases() -> Iterator[Case]:
    """Nodes of sound models. Calibration for other models also times some of these nodes, but in other sizes."""
    for number, (rows, width) in enumerate(POSITIONS):
        for taps in (3, 15, 31):
            yield Case(kind="conv.centred", count=2, rows=rows, k=width, n=taps)
        for kind in ("sigmoid", "pad", "split", *(("layernorm", "gelu", "silu", "add") if number % 3 == 1 else ())):
            yield Case(kind=kind, count=8, rows=rows, k=width if kind != "split" else 3 * width)
        yield Case(kind="transpose", count=4, rows=rows, k=width)
        yield Case(kind="gather", count=4, rows=3 * rows, k=width, n=rows)
        for weights in ("fp32", "int8"):
            for k, n in ((3 * width, width), (width, 4 * width), (width, 21)):
                yield Case(kind="matmul", weights=weights, count=2, rows=rows, k=k, n=n)
    for rows, heads, head_size in ((10, 2, 16), (20, 2, 32), (50, 2, 32), (100, 2, 32), (100, 4, 16), (200, 2, 32)):
        yield Case(kind="attention.full", count=2, rows=rows, heads=heads, kv_heads=heads, head_size=head_size)


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
        self._loaded: dict[Case, Callable[[], object]] = {}  # runs a graph once; the latest graph last

    def _open(self, case: Case) -> Callable[[], object]:
        """Builds and loads the graph of a case, or takes it from the loaded ones; returns a function that runs it."""
        import onnxruntime as ort

        from chipwise.deploy.calibrate.case_graphs import graph_of
        from chipwise.deploy.runtimes.onnx_session import bound, session_options

        if case in self._loaded:
            return self._loaded[case]
        model, feeds, outputs = graph_of(case, self._generator, self._matrices)
        session = ort.InferenceSession(model, session_options(self._threads), providers=["CPUExecutionProvider"])
        binding = bound(session, feeds, outputs)

        def run(_arrays: object = (feeds, outputs)) -> None:  # the binding holds only their addresses
            session.run_with_iobinding(binding)

        if not case.large:
            self._loaded[case] = run
        if len(self._loaded) > LOADED:
            del self._loaded[next(iter(self._loaded))]
        return run

    def time(self, case: Case, *, seconds: float) -> float:
        """Seconds of one run of the graph on an undisturbed machine; at least 7 runs are timed, for about ``seconds``.

        With one thread this is processor time, which excludes the time that other processes use the core.
        """
        run = self._open(case)
        samples: list[float] = []
        clock = time.process_time if self._threads == 1 else time.perf_counter
        for _ in range(2):
            run()
        end = clock() + seconds
        while len(samples) < 7 or clock() < end:
            start = clock()
            run()
            samples.append(clock() - start)
        return own_speed(samples)


class _Worker:
    """Times cases in one process. See ``core/workers.py`` for the protocol."""

    bench: Bench
    seconds: float

    def start(self, setup: Message) -> None:
        """Pins this process to cores and opens the runtime with the given number of threads."""
        sensors.pin(setup["cpus"])
        self.bench, self.seconds = Bench(threads=setup["threads"]), setup["seconds"]

    def run(self, job: Message, _report: Report) -> float:
        """Times a case; returns the seconds of one run."""
        return self.bench.time(Case(**job), seconds=self.seconds)


if __name__ == "__main__":
    worker = _Worker()
    serve(worker.run, start=worker.start)
