"""Grouped products one by one: the same outputs, the operators counted by hand, and what stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import chipwise
from chipwise.deploy.graphs.separate import write_separate
from chipwise.deploy.graphs.sessions import opened

RANDOM = np.random.default_rng(0)


def graph(path: Path, nodes: list[onnx.NodeProto], held: dict[str, tuple[int, ...]], shape: tuple, opset: int) -> Path:
    weights = [numpy_helper.from_array(RANDOM.normal(size=of).astype(np.float32), name) for name, of in held.items()]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(path))
    return path


def experts(path: Path, *, shape: tuple, opset: int = 17) -> Path:
    """Five experts' feed-forwards of 8 · 12 and 12 · 8."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "down"], ["y"]),
    ]
    return graph(path, nodes, {"up": (5, 8, 12), "down": (5, 12, 8)}, shape, opset)


@pytest.mark.parametrize(
    ("shape", "opset", "splits"), [((5, 3, 8), 17, 2), ((2, 5, 3, 8), 18, 2), ((3, 8), 17, 1)], ids=str
)
def test_experts_one_by_one_give_the_same_outputs(tmp_path: Path, shape: tuple, opset: int, splits: int) -> None:
    """Two grouped products become ten; rows that all experts share need no split."""
    path, out = experts(tmp_path / "experts.onnx", shape=shape, opset=opset), tmp_path / "separate.onnx"
    assert write_separate(path, out) == 2
    kinds = [node.op_type for node in onnx.load(str(out)).graph.node]
    assert (kinds.count("MatMul"), kinds.count("Split"), kinds.count("Concat")) == (10, splits, 2)
    feed = {"x": RANDOM.normal(size=shape).astype(np.float32)}
    ((together,), (apart,)) = (opened(each, threads=1).run(None, feed) for each in (path, out))
    assert together.shape == apart.shape
    np.testing.assert_allclose(apart, together, atol=1e-4)


def test_a_grouped_convolution_is_one_for_each_group(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=4, pads=[1, 1, 1, 1])
    path = graph(tmp_path / "conv.onnx", [node], {"w": (8, 3, 3, 3), "b": (8,)}, (1, 12, 6, 6), 17)
    out = tmp_path / "separate.onnx"
    assert write_separate(path, out) == 1
    assert [node.op_type for node in onnx.load(str(out)).graph.node] == ["Split", *["Conv"] * 4, "Concat"]
    feed = {"x": RANDOM.normal(size=(1, 12, 6, 6)).astype(np.float32)}
    ((together,), (apart,)) = (opened(each, threads=1).run(None, feed) for each in (path, out))
    np.testing.assert_allclose(apart, together, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 65])
def test_graphs_without_grouped_products_are_not_written(tmp_path: Path, channels: int) -> None:
    """One group is no group, and 65 are more than are separated (a depthwise convolution)."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=channels)
    path = graph(tmp_path / "conv.onnx", [node], {"w": (channels, 1, 1, 1)}, (1, channels, 4, 4), 17)
    assert write_separate(path, tmp_path / "separate.onnx") == 0
    assert not (tmp_path / "separate.onnx").exists()


def test_fused_and_unfused_grouped_and_separate_are_measured_together(tmp_path: Path) -> None:
    path = experts(tmp_path / "experts.onnx", shape=(5, 64, 8))
    found = chipwise.measure(path, profile=True, keep=False).fusions
    assert (found.operators_without, found.separate.groups) == (3, 2)
    assert found.separate.operators >= 10
    slower, low, high = found.separate.slower
    assert 0 < low <= slower <= high
    assert found.separate.seconds > 0
