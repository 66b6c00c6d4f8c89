"""ONNX graphs of the calibration cases in ``microbench.py``, built with the blocks of exported models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from onnx import helper

from chipwise.core.arrays import AnyArray
from chipwise.deploy.calibrate.microbench import ATTENTION, IMAGE_KINDS, RANKING_KINDS, SOUND_KINDS, Case
from chipwise.deploy.export.onnx import IR_VERSION, OPSET
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.blocks.attention.onnx import add_attention
from chipwise.model.blocks.conv.onnx import add_conv
from chipwise.model.blocks.conv_module.onnx import add_filter
from chipwise.model.blocks.ffn.onnx import ACTIVATIONS
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.blocks.quantize import NEAREST
from chipwise.model.kinds.ranking.candidates.onnx import add_heads

Arrays = dict[str, AnyArray]
Matrices = dict[tuple[str, int, int], Arrays]
"""Cache of random matrices in stored form, by format, rows and columns."""


@dataclass(kw_only=True)
class CaseGraph(GraphBuilder):
    """The graph of a case, with its input and output arrays."""

    case: Case
    generator: np.random.Generator
    matrices: Matrices
    feeds: Arrays = field(default_factory=dict)
    results: Arrays = field(default_factory=dict)

    def given(self, name: str, value: AnyArray) -> str:
        """Declares an input with its value."""
        self.feeds[name] = value
        return self.input(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    def random(self, name: str, *shape: int) -> str:
        """Declares an input of random numbers."""
        return self.given(name, self.generator.standard_normal(shape, dtype=np.float32))

    def result(self, name: str, *shape: int) -> None:
        """Declares an output."""
        self.output(name, shape)
        self.results[name] = np.empty(shape, np.float32)

    def projection(
        self, place: str, x: str, *, k: int, parts: Mapping[str, int], key: str = "", bias: bool = False
    ) -> str:
        """Adds a projection as in exported models; for a case of attention, adds nothing and returns ``x``."""
        if self.case.kind == "attention":
            return x
        return super().projection(place, x, k=k, parts=parts, key=key, bias=bias)

    def prestore(self, number: int, k: int, n: int) -> None:
        """Stores a (k, n) matrix under the names that :meth:`projection` would use.

        Matrices of one shape are rotated copies of each other, because the runtime would store equal ones only once.
        """
        form = self.case.weights
        if (form, k, n) not in self.matrices:
            matrix = self.generator.standard_normal((n, k), dtype=np.float32) / np.float32(np.sqrt(k))
            made = {"weight": np.ascontiguousarray(matrix.T)}
            if form != "fp32":
                packed = NEAREST.pack("", matrix, form)
                values = np.ascontiguousarray(packed.values.T) if form == "int8" else packed.values
                made = {form: values, "scale": packed.scales}
            self.matrices[form, k, n] = made
        for name, value in self.matrices[form, k, n].items():
            self.store(f"w{number}.{name}", partial(np.roll, value, number, axis=0))


def graph_of(case: Case, generator: np.random.Generator, matrices: Matrices) -> tuple[bytes, Arrays, Arrays]:
    """Builds a case's model, its inputs, and arrays for its outputs; ``matrices`` caches random matrices for reuse."""
    graph = CaseGraph(weights={}, format_of=lambda _: case.weights, case=case, generator=generator, matrices=matrices)
    NODES.get(case.kind, _chain)(graph, case)
    model = helper.make_model(
        helper.make_graph(graph.nodes, case.kind, graph.inputs, graph.outputs, list(graph.stored.values())),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=IR_VERSION,
    )
    return model.SerializeToString(), graph.feeds, graph.results


def _chain(graph: CaseGraph, case: Case) -> None:
    shape = (1, case.rows, case.k)
    x = start = graph.random("x", *shape)
    width = case.k
    unit = graph.store("unit", lambda: np.ones(case.k, np.float32)) if "norm" in case.kind else ""
    for i in range(case.count):
        y = f"y{i}"
        if case.kind == "matmul":
            k, n = (case.k, case.n) if i % 2 == 0 else (case.n, case.k)
            graph.prestore(i, k, n)
            graph.projection(y, x, k=k, parts={"w": n}, key=f"w{i}")
            width = n
        elif case.kind == "rmsnorm":
            graph.node("SimplifiedLayerNormalization", [x, unit], y, axis=-1, epsilon=1e-5, stash_type=1)
        elif case.kind == "skip_rmsnorm":
            inputs, results = [x, start, unit], [y, "", "", f"{y}.sum"]
            graph.node("SkipSimplifiedLayerNormalization", inputs, results, domain=MICROSOFT, epsilon=1e-5)
        elif case.kind == "layernorm":
            graph.node("LayerNormalization", [x, unit, unit], y, axis=-1, epsilon=1e-5)
        elif case.kind in ("mul", "add"):
            graph.node(case.kind.capitalize(), [x, start], y)
        elif case.kind == "sin":
            graph.node("Sin", [x], y)
        else:
            op, attributes = ACTIVATIONS[case.kind]
            graph.node(op, [x], y, **attributes)
        x = y
    graph.result(x, 1, case.rows, width)


def _attention(graph: CaseGraph, case: Case) -> None:
    total = case.past + case.rows
    block = Attention(heads=case.heads, kv_heads=case.kv_heads, head_size=case.head_size)
    graph.given("seqlens_k", np.array([total - 1], np.int32))
    graph.given("total_sequence_length", np.array(total, np.int32))
    width = block.query_width + 2 * block.kv_width
    packed = graph.generator.standard_normal((1, case.rows, width), dtype=np.float32)
    names = [graph.given(f"x{i}", packed) for i in range(case.count)]
    for i, name in enumerate(names):
        output = add_attention(
            graph,
            block,
            layer=i,
            key="",
            x=name,
            d_model=width,
            max_tokens=total,
            rope_theta=1e4,
            head_norm=lambda *_, **__: "",
        )
        graph.result(output, 1, case.rows, block.query_width)
        for part in ("key", "value"):
            cache = graph.generator.standard_normal((1, case.kv_heads, total, case.head_size), dtype=np.float32)
            graph.feeds[f"past.{i}.{part}"] = graph.results[f"present.{i}.{part}"] = cache


def _conv(graph: CaseGraph, case: Case) -> None:
    shape = (1, case.rows, case.k)
    x = graph.random("x", *shape)
    for i in range(case.count):
        graph.weights = {f"w{i}.weight": np.full((case.k, 1, case.n), -0.1, np.float32)}
        x = add_conv(graph, state=f"{i}.conv", place=f"y{i}", key=f"w{i}", x=x, taps=case.n, d_model=case.k)
        kept = np.zeros((1, case.k, case.n - 1), np.float32)
        graph.feeds[f"past.{i}.conv"] = graph.results[f"present.{i}.conv"] = kept
    graph.result(x, *shape)


def _gather(graph: CaseGraph, case: Case) -> None:
    table = graph.store("table", lambda: np.zeros((case.n, case.k), np.float32))
    rows = graph.generator.integers(0, case.n, (1, case.rows))
    tokens = graph.given("tokens", rows)
    for i in range(case.count):
        name = graph.node("Gather", [table, tokens], f"y{i}", axis=0)
        graph.result(name, 1, case.rows, case.k)


def _image(graph: CaseGraph, case: Case) -> None:
    """Adds the case's image nodes to ``graph``, in parallel: each reads the same input."""
    width = case.heads * case.head_size
    if case.kind == "conv.image":
        x = graph.random("x", 1, case.k, case.rows, case.rows)
    elif case.kind == "transpose":
        x = graph.random("x", 1, 1, case.rows, case.k // 4, 4)
    elif case.kind in ("attention.full", "attention.biased"):
        x = graph.random("x", 1, case.rows, width)
        keys, values = (graph.random(name, 1, case.past or case.rows, width) for name in ("keys", "values"))
    else:
        x = graph.random("x", 1, case.rows, case.k)
    for i in range(case.count):
        y = f"y{i}"
        if case.kind in ("attention.full", "attention.biased"):
            pairs = (1, case.heads, case.rows, case.rows)
            added = graph.store("biases", partial(np.zeros, pairs, np.float32))
            further = ["", "", added] if case.kind == "attention.biased" else []
            graph.node("MultiHeadAttention", [x, keys, values, *further], y, domain=MICROSOFT, num_heads=case.heads)
            graph.result(y, 1, case.rows, width)
        elif case.kind == "conv.image":
            shape = (case.n, case.k, 3, 3)
            weight = graph.generator.standard_normal(shape, dtype=np.float32)
            stored = graph.store(f"w{i}", partial(np.asarray, weight))
            bias = graph.store("bias", lambda: np.zeros(case.n, np.float32))
            sizes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
            graph.node("Conv", [x, stored, bias], y, **sizes)
            graph.result(y, 1, case.n, case.rows // 2, case.rows // 2)
        elif case.kind == "pool":
            graph.node("ReduceMean", [x, graph.store("axis", lambda: np.array([1], np.int64))], y, keepdims=0)
            graph.result(y, 1, case.k)
        elif case.kind == "split":
            thirds = graph.store("thirds", lambda: np.full(3, case.k // 3, np.int64))
            names = [f"{y}.{part}" for part in "qkv"]
            graph.node("Split", [x, thirds], names, axis=-1)
            for name in names:
                graph.result(name, 1, case.rows, case.k // 3)
        elif case.kind == "transpose":
            graph.node("Transpose", [x], y, perm=[0, 2, 1, 3, 4] if i % 2 else [0, 3, 2, 1, 4])
            turned = (1, case.rows, 1, case.k // 4, 4) if i % 2 else (1, case.k // 4, case.rows, 1, 4)
            graph.result(y, *turned)
        else:
            room = graph.store("room", lambda: np.array([0, 1, 0, 0, 0, 0], np.int64))
            graph.node("Pad", [x, room], y)
            graph.result(y, 1, case.rows + 1, case.k)


def _ranking(graph: CaseGraph, case: Case) -> None:
    """Adds the case's ranking nodes to ``graph``, in parallel."""
    shape = (1, case.rows, case.k)
    if case.kind == "bag":
        table = graph.store("table", lambda: np.zeros((100, case.k), np.float32))
        x = graph.given("x", graph.generator.integers(0, 100, (1, case.rows, case.n)))
    else:
        x = graph.random("x", *shape)
    ints = {value: graph.store(f"int.{value}", partial(np.full, 1, value, np.int64)) for value in (-1, 0, 2)}
    for i in range(case.count):
        y = f"y{i}"
        if case.kind == "bag":
            rows = graph.node("Gather", [table, x], f"{y}.rows", axis=0)
            graph.node("ReduceSum", [rows, ints[2]], y, keepdims=0)
            graph.result(y, *shape)
        elif case.kind == "dot":
            product = graph.node("Mul", [x, x], f"{y}.product")
            graph.node("ReduceSum", [product, ints[-1]], y, keepdims=0)
            graph.result(y, *shape[:2])
        else:
            end = graph.store("end", lambda: np.array([case.rows - 1], np.int64))
            one = graph.store("one", lambda: np.array([1], np.int64))
            graph.node("Slice", [x, ints[0], end, one], y)
            graph.result(y, 1, case.rows - 1, case.k)


def _ranking_attention(graph: CaseGraph, case: Case) -> None:
    _, kind, place = case.kind.split(".")
    block = Attention(
        heads=case.heads,
        kv_heads=case.heads,
        head_size=case.head_size,
        rope=False,
        relative_buckets=case.past + 1,
        pointwise=kind == "pointwise",
    )
    tokens, parts, last = case.past + case.rows, 4 if block.pointwise else 3, place == "last"
    shape = (case.batch, tokens, parts * block.query_width)
    packed = graph.random("packed", *shape)
    graph.given("candidates", np.zeros((case.batch, case.rows), np.int64))
    table = np.zeros((case.heads, case.past + 1, case.past + 1), np.float32)
    asking = case.rows if last else tokens
    for i in range(case.count):
        names = add_heads(graph, block, case.past, place=f"y{i}", packed=[packed], bias=lambda: table, last=last)
        for name in filter(None, names):
            graph.result(name, case.batch, asking, block.query_width)


def _sound(graph: CaseGraph, case: Case) -> None:
    """Adds the case's sound nodes to ``graph``, in parallel."""
    shape = (1, case.rows, case.k)
    x = graph.random("x", *shape)
    for i in range(case.count):
        y = f"y{i}"
        if case.kind == "sigmoid":
            graph.node("Sigmoid", [x], y)
        else:
            weight = graph.generator.standard_normal((case.k, 1, case.n), dtype=np.float32)
            graph.weights = {f"w{i}.weight": weight, f"w{i}.bias": np.zeros(case.k, np.float32)}
            add_filter(graph, ConvModule(taps=case.n), place=y, key=f"w{i}", x=x, d_model=case.k)
        graph.result(y, *shape)


NODES: Mapping[str, Callable[[CaseGraph, Case], None]] = {
    "attention": _attention,
    "conv": _conv,
    "gather": _gather,
    **dict.fromkeys(IMAGE_KINDS, _image),
    **dict.fromkeys(RANKING_KINDS, _ranking),
    **dict.fromkeys(ATTENTION, _ranking_attention),
    **dict.fromkeys(SOUND_KINDS, _sound),
}
"""Functions that add a case's nodes, by the kind of case. Cases of other kinds are chains of matrices, norms and
elementwise operators."""
