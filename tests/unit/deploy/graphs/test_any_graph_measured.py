"""Any ONNX graph is measured here and by a kit, on random or given data; mistakes give one error line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.errors import InputError, MeasurementError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    """A convolution with external weights over images of open height and width, and the sum of its outputs."""
    weight = numpy_helper.from_array(np.ones((16, 3, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="only_conv"),
        helper.make_node("Sqrt", ["y"], ["root"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "high", "wide"])]
    outputs = [helper.make_tensor_value_info("root", TensorProto.FLOAT, ["n", 16, None, None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "detector.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="detector.bin", size_threshold=0)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, x=np.ones((1, 3, 12, 9), np.float32))
    return path


def test_a_graph_is_measured_on_given_data_with_its_operators(detector: Path, images: Path) -> None:
    found = chipwise.measure(detector, inputs=images, profile=True, keep=False)
    measured = found.measurement
    assert measured.encodes
    assert measured.environment["inputs"] == {"x": [1, 3, 12, 9]}
    assert measured.peak_memory_bytes is not None
    assert 0 < measured.percentile("ttft", 0.5) <= measured.percentile("ttft", 0.99)
    by_node = {row["node"]: row for row in found.profile}
    convolutions = [row for row in by_node.values() if "Conv" in str(row["operator"])]
    assert [row["outputs"] for row in convolutions] == [[[1, 16, 10, 7]]]  # 12 - 2 by 9 - 2


def test_a_fused_graph_and_an_unfused_one_are_timed_in_turns(tmp_path: Path) -> None:
    """GELU by its formula is five operators, x / 2 * (1 + erf(x / sqrt 2)), which the runtime fuses into one."""
    constants = {"root": 2.0**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["y"]),
    ]
    both = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 256]) for name in ("x", "y")]
    held = [numpy_helper.from_array(np.array(constants[name], np.float32), name) for name in ("root", "one", "half")]
    graph = helper.make_graph(nodes, "g", both[:1], both[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "gelu.onnx"))
    fusions = chipwise.measure(tmp_path / "gelu.onnx", profile=True, keep=False, shapes={"x": (64, 256)}).fusions
    assert (fusions.operators, fusions.operators_without) == (1, 5)
    low, high = fusions.slower[1:]
    assert 1 < low <= fusions.slower[0] <= high
    assert fusions.seconds_without > fusions.seconds > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, r"shape \(n, 3, high, wide\); give sizes for its open \(dynamic\) axes with --shape x=1,3,…,…"),
        ({"shapes": {"y": (1, 3, 8, 8)}}, "unknown input of detector.onnx 'y'"),
        ({"shapes": {"x": (1, 4, 8, 8)}}, "cannot be"),
        ({"shapes": {"x": (1, 3, 8, 8)}, "prompt": 4}, "prompt: does not apply to"),
        ({"shapes": {"x": (1, 3, 8, 8)}, "runtime": "llama.cpp"}, "are measured in onnxruntime"),
    ],
)
def test_wrong_requests_are_refused(detector: Path, arguments: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        chipwise.measure(detector, keep=False, **arguments)


def test_data_that_give_no_numbers_are_an_error(detector: Path, tmp_path: Path) -> None:
    negative = tmp_path / "negative.npz"
    np.savez(negative, x=np.full((1, 3, 8, 8), -1.0, np.float32))
    with pytest.raises(MeasurementError, match="its output 'root' is not finite for these inputs"):
        chipwise.measure(detector, inputs=negative, keep=False)


def test_shapes_are_for_graphs_alone() -> None:
    with pytest.raises(InputError, match=r"only apply to \.onnx files"):
        chipwise.measure("gpt2", shapes={"x": (1,)})


def test_a_kit_runs_any_graph_and_its_results_are_read_back(detector: Path, images: Path, tmp_path: Path) -> None:
    packed = chipwise.kit(detector, inputs=images, out=tmp_path / "kit")
    assert packed.kit.models[0].inputs == {"x": (1, 3, 12, 9)}
    script = [sys.executable, "kit.py", "--rounds", "1", "--seconds", "0.01", "--prefills", "3", "--steps", "3"]
    done = subprocess.run(script, cwd=packed.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    imported = chipwise.import_measurements(packed.folder / "kit-results.json")
    (measured,) = imported.measurements
    assert measured.encodes
    assert measured.environment["rounds"][0]["inputs"] == {"x": [1, 3, 12, 9]}


def test_a_module_is_measured_like_its_graph_and_stays_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5))
    found = chipwise.measure(module, inputs=(torch.ones(3, 4),), keep=False)
    assert found.measurement.environment["inputs"] == {"input": [3, 4]}
    assert module.training
    with pytest.raises(InputError, match=r"Sequential: forward\(input\) fails on input \(3, 5\): "):
        chipwise.measure(module, inputs=(torch.ones(3, 5),), keep=False)
    with pytest.raises(InputError, match=r"forward\(input\) needs inputs"):
        chipwise.measure(module, keep=False)
    with pytest.raises(InputError, match=r"takes forward\(input\): too many positional arguments"):
        chipwise.measure(module, inputs=(torch.ones(3, 4), torch.ones(3, 4)), keep=False)
