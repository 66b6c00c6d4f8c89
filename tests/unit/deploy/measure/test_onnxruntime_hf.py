"""ONNX files of other exporters: read by Hugging Face's names, measured like one's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise import api
from chipwise.api.testing.backend_suite import BackendSuite
from chipwise.deploy.runtimes import RUNTIMES
from chipwise.errors import MeasurementError

onnx = pytest.importorskip("onnx")
VOCAB, WIDTH = 37, 8
TABLE = np.random.default_rng(0).normal(size=(VOCAB, WIDTH)).astype(np.float32)


def value(name: str, *shape: int | str, kind: int = onnx.TensorProto.FLOAT):
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def integers(name: str, *shape: str):
    return value(name, *shape, kind=onnx.TensorProto.INT64)


def write(path: Path, nodes, inputs, outputs, **arrays) -> Path:
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in {"table": TABLE, **arrays}.items()]
    graph = onnx.helper.make_graph(nodes, "made by hand", inputs, outputs, constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return path


def decoder(path: Path, *, outputs: tuple[str, ...] = ("present.0.key", "present.0.value"), width: int = WIDTH) -> Path:
    """The last position's logits are the mean of all embeddings so far, over the mask's sum, times the table."""
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["embedded"]),
        node("Unsqueeze", ["embedded", "heads"], ["new"]),
        node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "new"], ["present.0.value"], axis=2),
        node("ReduceSum", ["present.0.key", "positions"], ["sum"], keepdims=0),
        node("Cast", ["attention_mask"], ["mask"], to=onnx.TensorProto.FLOAT),
        node("ReduceSum", ["mask", "last"], ["seen"]),
        node("Unsqueeze", ["seen", "last"], ["seen3"]),
        node("Div", ["sum", "seen3"], ["mean"]),
        node("Transpose", ["table"], ["columns"], perm=[1, 0]),
        node("MatMul", ["mean", "columns"], ["logits"]),
    ]
    cache = ("batch", 1, "past", width)
    return write(
        path,
        nodes,
        [
            integers("input_ids", "batch", "tokens"),
            integers("attention_mask", "batch", "all"),
            value("past_key_values.0.key", *cache),
            value("past_key_values.0.value", *cache),
        ],
        [value("logits", "batch", 1, VOCAB), *(value(name, "batch", 1, "all", WIDTH) for name in outputs)],
        heads=np.array([1]),
        positions=np.array([2]),
        last=np.array([1]),
    )


def encoder(path: Path) -> Path:
    """States are embeddings; nothing says how many tokens there are."""
    nodes = [onnx.helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    return write(
        path,
        nodes,
        [integers("input_ids", "batch", "tokens"), integers("attention_mask", "batch", "tokens")],
        [value("last_hidden_state", "batch", "tokens", WIDTH)],
    )


class TestHuggingFaceOnnx(BackendSuite):
    runtime = "onnxruntime"

    @pytest.fixture
    def model(self, tmp_path):
        return decoder(tmp_path / "decoder.onnx")

    def test_logits_are_those_by_pencil(self, opened):
        tokens = np.array([[3, 1, 4, 1]])
        by_pencil = TABLE[tokens[0]].mean(0) @ TABLE.T
        np.testing.assert_allclose(opened.prefill(tokens[:, :2])[0], TABLE[[3, 1]].mean(0) @ TABLE.T, atol=1e-5)
        opened.decode(tokens[:, 2:3])
        np.testing.assert_allclose(opened.decode(tokens[:, 3:])[0], by_pencil, atol=1e-5)


def test_sequences_of_a_batch_do_not_mix(tmp_path: Path) -> None:
    runtime = RUNTIMES.load("onnxruntime")()
    path, common = decoder(tmp_path / "d.onnx"), {"capacity": 6, "threads": 1, "options": {}}
    both, alone = runtime.open(path, batch=2, **common), runtime.open(path, batch=1, **common)
    both.prefill(np.array([[1, 2, 3], [4, 5, 6]]))
    alone.prefill(np.array([[4, 5, 6]]))
    np.testing.assert_allclose(both.decode(np.array([[7], [8]]))[1], alone.decode(np.array([[8]]))[0], atol=1e-5)


def test_an_encoder_is_measured_by_its_prompt_and_its_vocabulary_is_found(tmp_path: Path) -> None:
    path = encoder(tmp_path / "encoder.onnx")
    opened = RUNTIMES.load("onnxruntime")().open(path, capacity=6, batch=1, threads=1, options={})
    assert opened.vocab_size == VOCAB
    np.testing.assert_array_equal(opened.prefill(np.array([[VOCAB - 1, 0]]))[0], TABLE[[VOCAB - 1, 0]])
    with pytest.raises(MeasurementError, match="without a cache"):
        opened.decode(np.array([[0]]))
    measured = api.measure(str(path), prompt=8, new=8, keep=False)
    assert {"ttft_p50", "peak_memory"} <= set(measured.metrics)
    assert "tpot_p50" not in measured.metrics


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: decoder(path, outputs=("present.0.key",)), "does not return 'present.0.value'"),
        (lambda path: decoder(path, width="size"), "must be numbers"),
        (
            lambda path: write(
                path,
                [onnx.helper.make_node("Gather", ["table", "pixels"], ["y"])],
                [integers("pixels", "batch", "tokens")],
                [value("y", "batch", "tokens", WIDTH)],
            ),
            "input 'pixels'",
        ),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, make, said: str) -> None:
    path = make(tmp_path / "odd.onnx")
    with pytest.raises(MeasurementError, match=said):
        RUNTIMES.load("onnxruntime")().open(path, capacity=6, batch=1, threads=1, options={})
