"""Any ONNX file as operators: counts by pencil, and one clear error for each bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
np = pytest.importorskip("numpy")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chipwise.errors import InputError, UnknownName, Unsupported  # noqa: E402
from chipwise.model.graphs.graph import Graph, GraphOp  # noqa: E402
from chipwise.model.graphs.read import model_inputs, read_graph  # noqa: E402


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)


def saved(path: Path, nodes: list, inputs: dict, weights: list, outputs: tuple[str, ...] = ("y",)) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, axes) for name, (kind, axes) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A 3×3 convolution with ReLU, a depthwise one, a mean, and a matrix."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], name="/stem/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="/stem/act/Relu"),
        helper.make_node("Conv", ["r", "d"], ["e"], name="/body/dw/Conv", group=8, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["e"], ["p"], name="/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["p"], ["f"], name="/Flatten"),
        helper.make_node("MatMul", ["f", "w"], ["y"], name="/head/MatMul"),
    ]
    weights = [weight("a", 8, 3, 3, 3), weight("d", 8, 1, 3, 3), weight("w", 8, 10)]
    return saved(tmp_path / "net.onnx", nodes, {"x": (1, ["n", 3, "side", "side"])}, weights)


def by_module(graph: Graph, module: str) -> GraphOp:
    return next(op for op in graph.ops if op.module == module)


def test_counts_of_a_small_network(network: Path) -> None:
    graph = read_graph(network, {"x": (1, 3, 7, 7)})
    stem = by_module(graph, "stem.act")  # fused: the output is the activation's
    # 7 outputs and 3 taps along an axis: 21 pairs, 2 of them on padding; 3 channels in, 8 out
    assert (stem.kind, stem.flops) == ("conv", 2 * 3 * 8 * 19 * 19)
    assert stem.flops + stem.padded_flops == 2 * 3 * 8 * 21 * 21
    assert stem.weight_bytes == 4 * 8 * 3 * 9
    assert stem.read_bytes == 4 * 3 * 49
    depthwise = by_module(graph, "body.dw")
    assert (depthwise.kind, depthwise.flops) == ("depthwise conv", 2 * 8 * 9 * 9)  # 3×3 outputs of stride 2
    head = by_module(graph, "head")
    assert (head.kind, head.flops, head.gemm) == ("matmul", 2 * 8 * 10, (1, 1, 10, 8))
    assert graph.parameters == 8 * 27 + 8 * 9 + 80
    assert not graph.uncounted


def test_an_axis_is_fixed_by_its_own_name(network: Path) -> None:
    assert read_graph(network, {"n": (2,), "side": (7,)}).inputs[0].shape == (2, 3, 7, 7)
    assert model_inputs(network) == {"x": ("float32", ("n", 3, "side", "side"))}


def test_open_axes_are_asked_for_by_name(network: Path) -> None:
    with pytest.raises(InputError, match=r"axes: x \(n, 3, side, side\); give sizes, such as --shape x=1,3,1,1"):
        read_graph(network)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"y": (1,)}, "unknown input or axis"),
        ({"x": (1, 3, 7)}, "has 3 axes, but the input has 4: n, 3, side, side"),
        ({"x": (1, 4, 7, 7)}, "a fixed axis of 3 cannot be 4"),
        ({"x": (1, 3, 7, 8)}, "the axis 'side' is given as 7 and as 8"),
        ({"x": (1, 3, 7, -7)}, "sizes must be whole numbers"),
    ],
)
def test_wrong_shapes(network: Path, shapes: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_graph(network, shapes)


def test_values_steer_the_graph(tmp_path: Path) -> None:
    def branch(depth: int) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["x", f"w{depth}"], [f"o{depth}"])]
        return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info(f"o{depth}", 1, None)])

    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=branch(6), else_branch=branch(5)),
    ]
    rate = numpy_helper.from_array(np.array(16000), "rate")
    weights = [weight("w6", 4, 6), weight("w5", 4, 5), rate]
    inputs = {"x": (1, [1, 4]), "sr": (TensorProto.INT64, [])}
    path = saved(tmp_path / "if.onnx", nodes, inputs, weights)
    assert read_graph(path, values={"sr": 16000}).flops == 2 * 4 * 6
    assert read_graph(path, values={"sr": 8000}).flops == 2 * 4 * 5
    graph = read_graph(path)  # by a run with made inputs, which takes one of the branches
    assert graph.product_flops == 2 * 4 * 5
    assert "a run with random inputs" in graph.notes[0]
    with pytest.raises(UnknownName, match="unknown input"):
        read_graph(path, values={"rat": 1})
    with pytest.raises(InputError, match="must be of type int64, not 'fast'"):
        read_graph(path, values={"sr": "fast"})


def test_a_loop_counts_each_turn(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["t"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("s", 1, [1, 4])],
        [info("d", TensorProto.BOOL, []), info("t", 1, [1, 4])],
    )
    nodes = [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)]
    turns = numpy_helper.from_array(np.array(3), "turns")
    path = saved(tmp_path / "loop.onnx", nodes, {"x": (1, [1, 4])}, [weight("w", 4, 4), turns])
    graph = read_graph(path)
    assert graph.product_flops == 3 * 2 * 4 * 4
    assert max(op.runs for op in graph.ops) == 3


def test_four_bit_matrix(tmp_path: Path) -> None:
    packed = numpy_helper.from_array(np.zeros((8, 2, 16), np.uint8), "b")  # 8 columns, 2 blocks of 32 along k
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=64, N=8, bits=4, block_size=32
    )
    path = saved(tmp_path / "n.onnx", [node], {"x": (1, [3, 64])}, [packed, weight("s", 16)])
    (op,) = read_graph(path).ops
    assert (op.kind, op.flops, op.dtype, op.weight_bytes) == ("matmul", 2 * 3 * 64 * 8, "int4", 256 + 64)


def test_recurrent_layer(tmp_path: Path) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5, direction="bidirectional")
    path = saved(tmp_path / "l.onnx", [node], {"x": (1, [7, 2, 3])}, [weight("w", 2, 20, 3), weight("r", 2, 20, 5)])
    (op,) = [each for each in read_graph(path).ops if each.kind == "recurrent"]
    assert op.flops == 2 * 7 * 2 * (2 * 20 * (3 + 5) + 5 * 20)  # directions · steps · batch · (products + gates)
    assert op.gemm == (14, 2, 20, 8)


def test_external_data(network: Path) -> None:
    model = onnx.load(network)
    other = network.with_name("ext.onnx")
    onnx.save(model, other, save_as_external_data=True, location="ext.bin", size_threshold=0)
    assert read_graph(other, {"x": (1, 3, 7, 7)}).flops == read_graph(network, {"x": (1, 3, 7, 7)}).flops
    network.with_name("ext.bin").unlink()
    with pytest.raises(InputError, match=r"the weights of 'a' are in 'ext.bin', which is not in the model's folder"):
        read_graph(other, {"x": (1, 3, 7, 7)})


def test_bad_files(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08\x07 no protobuf at all" * 9)
    with pytest.raises(InputError, match="not an ONNX file, or a damaged one"):
        read_graph(broken)
    with pytest.raises(InputError, match="no such file"):
        read_graph(tmp_path / "none.onnx")
    node = helper.make_node("Trick", ["x"], ["y"], domain="mine", name="t")
    with pytest.raises(Unsupported, match="node 't' is the custom operator mine:Trick"):
        read_graph(saved(tmp_path / "custom.onnx", [node], {"x": (1, [2])}, []))


def test_an_unknown_operator_is_named_and_not_counted(tmp_path: Path) -> None:
    node = helper.make_node("NoSuch", ["x"], ["y"], name="t")
    graph = read_graph(saved(tmp_path / "refused.onnx", [node], {"x": (1, [2])}, []))
    assert [(op.op_type, op.flops) for op in graph.uncounted] == [("NoSuch", None)]
    assert "the FLOPs and bytes of 1 operator are unknown" in graph.notes[-1]
