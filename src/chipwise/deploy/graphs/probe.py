"""Measures this machine for the cost model of graphs: speed of matrix products, memory and calls in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from chipwise.deploy.graphs.sessions import clock_for
from chipwise.deploy.runtimes.onnx_session import session_options
from chipwise.predict.graphs.law import Speeds

SIDE, PRODUCTS = 512, 4  # side of the matrices, and number of consecutive products
VALUES = 2**22  # in each summed array: more than private caches hold
CALLS = 200
ROUNDS = 12


def probe(threads: int) -> Speeds:
    """Measures FLOP/s of matrix products, bytes/s of a sum of arrays, and seconds of a call, each in its best round."""
    square = np.full((SIDE, SIDE), 1e-3, np.float32)
    products = _least_s(["MatMul"] * PRODUCTS, square, square, threads)
    values = np.ones(VALUES, np.float32)
    stream_s = _least_s(["Add"], values, values, threads)
    one = np.ones(1, np.float32)
    calls_s = _least_s(["Add"] * CALLS, one, one, threads)
    flops_per_s = 2 * SIDE**3 * PRODUCTS / products
    return Speeds(flops_per_s={"fp32": flops_per_s}, bytes_per_s=3 * values.nbytes / stream_s, call_s=calls_s / CALLS)


def _least_s(operators: list[str], first: np.ndarray, second: np.ndarray, threads: int) -> float:
    """Returns the shortest time of a chain of operators, in seconds.

    The first operator is applied to ``first`` and ``second``, each later one to the previous result and ``second``.
    """
    shape = list(first.shape)
    names = ["x", *(f"y{i}" for i in range(len(operators)))]
    nodes = [
        helper.make_node(op, [name, "w"], [after])
        for op, name, after in zip(operators, names[:-1], names[1:], strict=True)
    ]
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, shape)],
        [onnx.numpy_helper.from_array(second, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = session_options(threads)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    clock: Callable[[], float] = clock_for(threads)
    least = float("inf")
    for _ in range(ROUNDS):
        begun = clock()
        session.run(None, {"x": first})
        least = min(least, clock() - begun)
    return least
