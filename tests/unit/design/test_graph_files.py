"""ONNX files of users on chips: profiles joined with operators, tables, and one line for each wrong argument."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import chipwise  # noqa: E402
from chipwise.design.models.graph_files import GraphRows, measured_operators  # noqa: E402
from chipwise.errors import InputError, SpecError, Unsupported  # noqa: E402
from chipwise.hardware.datasheet import load  # noqa: E402
from chipwise.model.graphs.graph import Graph, GraphOp  # noqa: E402
from chipwise.predict.graphs.chips import speeds_of  # noqa: E402
from chipwise.predict.graphs.law import law  # noqa: E402
from chipwise.predict.graphs.pricing import Chip  # noqa: E402

HERE = Chip(name="here", speeds=law().reference, fitted=True, dtype="fp32")
CONV = GraphOp(
    name="conv", op_type="Conv", kind="conv", module="", flops=10**6, write_bytes=4000, gemm=(1, 100, 16, 27),
    inputs=((1, 3, 12, 12),), outputs=((1, 16, 10, 10),), output="out",
)  # fmt: skip
GRAPH = Graph(
    path="net.onnx", inputs=(), outputs=("out",), values={}, ops=(CONV,), opset=17, parameters=0, weight_bytes=0,
    dtype="fp32",
)  # fmt: skip


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """A product whose first two axes are open."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "rows", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((32, 16), np.float32), "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_profiled_nodes_are_recognised_in_blocked_layouts_and_sum_to_the_pass() -> None:
    rows = [
        {"node": "out_nchwc", "operator": "Conv", "seconds": 30e-6},
        {"node": "ReorderOutput", "operator": "ReorderOutput", "seconds": 10e-6},
        {"node": "branch", "operator": "If", "seconds": 40e-6},  # holds the time of the nodes inside it
        {"node": "mine", "operator": "Odd", "seconds": 10e-6},
    ]
    found = measured_operators(GRAPH, HERE, rows, 50e-6)
    assert [each.kind for each in found] == ["conv", "layout", "unknown"]
    assert sum(each.seconds or 0 for each in found) == pytest.approx(50e-6)
    assert found[0].seconds == pytest.approx(30e-6)
    assert (found[0].flops, found[2].flops) == (10**6, None)


def test_what_the_profiler_adds_is_taken_off_evenly_before_scaling() -> None:
    extra_s = law().node_s(HERE.speeds) / 2
    rows = [
        {"node": "out", "operator": "Conv", "seconds": 30e-6 + extra_s},
        {"node": "mine", "operator": "Odd", "seconds": 10e-6 + extra_s},
    ]
    assert [each.seconds for each in measured_operators(GRAPH, HERE, rows, 40e-6)] == pytest.approx([30e-6, 10e-6])


def test_rows_of_a_table_get_a_time_or_a_reason(matrix: Path) -> None:
    answer = GraphRows()
    told = answer({"model": str(matrix), "device": "l4", "shape": "rows=8"})
    assert told is not None
    assert told["low_s"] < told["ttft_s"] < told["high_s"]
    again = answer({"model": str(matrix), "device": "nowhere", "shape": "rows=8"})
    assert again is not None
    assert "nowhere" in str(again["error"])
    assert answer({"model": "gpt2", "device": "l4"}) is None
    missing = answer({"model": "none.onnx", "device": "l4"})
    assert missing is not None
    assert "no such file" in str(missing["error"])


def test_several_devices_come_fastest_first(matrix: Path) -> None:
    found = chipwise.estimate(matrix, devices=["raspberry-pi-5", "h100-sxm"], shapes={"x": (1, 512, 32)})
    assert [each.device for each in found] == ["h100-sxm", "raspberry-pi-5"]


def test_wrong_arguments_are_one_line_each(matrix: Path) -> None:
    with pytest.raises(InputError, match="--shape x=1,1,32"):
        chipwise.estimate(matrix, device="l4")
    with pytest.raises(InputError, match="unknown input or axis"):
        chipwise.estimate(matrix, device="l4", shapes={"y": (1,)})
    with pytest.raises(InputError, match=r"batch: does not apply to .*net\.onnx"):
        chipwise.estimate(matrix, device="l4", batch=8)
    with pytest.raises(InputError, match=r"only apply to \.onnx files"):
        chipwise.explain("gpt2", device="l4", shapes={"x": (1,)})
    with pytest.raises(SpecError, match="chipwise quantize"):
        chipwise.explain(matrix, device="here", weights="int8", shapes={"rows": (8,)})
    with pytest.raises(Unsupported, match="has no rate for a graph in bf16"):
        speeds_of(load("apple-a17-pro:npu"), "bf16")  # its sheet lists int8 alone


def test_files_are_compared_side_by_side_on_each_device(matrix: Path) -> None:
    wide = matrix.with_name("wide.onnx")
    wide.write_bytes(matrix.read_bytes())
    asked = {"x": (1, 512, 32)}
    found = chipwise.compare([wide, str(matrix)], devices=["raspberry-pi-5", "h100-sxm"], shapes=asked)
    assert [each.device for each in found] == ["h100-sxm"] * 2 + ["raspberry-pi-5"] * 2
    alone = chipwise.estimate(matrix, device="h100-sxm", shapes=asked)
    assert found[0].latency_s == pytest.approx(alone.latency_s)
    with pytest.raises(
        InputError, match=r"gpt2 is no ONNX file or module, but .*net\.onnx is; compare models of one kind"
    ):
        chipwise.compare([str(matrix), "gpt2"], devices=["l4"], shapes=asked)
    with pytest.raises(InputError, match=r"batch: does not apply to .*net\.onnx"):
        chipwise.compare([str(matrix)], devices=["l4"], batch=8)
    with pytest.raises(InputError, match=r"only apply to \.onnx files"):
        chipwise.compare(["gpt2"], devices=["l4"], shapes=asked)


def test_modules_are_compared_with_files(matrix: Path) -> None:
    torch = pytest.importorskip("torch")
    given, sizes = (torch.ones(1, 512, 32),), {"x": (1, 512, 32)}
    found = chipwise.compare([matrix, torch.nn.Linear(32, 16)], devices=["l4"], inputs=given, shapes=sizes)
    assert {each.model for each in found} == {str(matrix), "Linear"}
    with pytest.raises(InputError, match="is a file"):
        chipwise.compare([matrix], devices=["l4"], inputs=given)
