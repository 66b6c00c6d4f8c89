"""Quantises a file within a loss limit, or writes nothing; a stopped run resumes with its earlier results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("scipy")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chipwise.deploy.graphs.inputs import Samples  # noqa: E402
from chipwise.design.quantize import onnx_file  # noqa: E402
from chipwise.design.quantize.divergence import Judge, kind_of, load_metric  # noqa: E402
from chipwise.design.quantize.node_choices import OTHERS, Candidate, Product, mixed, told, uniform  # noqa: E402
from chipwise.design.quantize.node_formats import Maker, prepare  # noqa: E402
from chipwise.errors import InputError, MeasurementError, SpecError, StudyError  # noqa: E402

WIDTH = 64


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A scale that is given, a MatMul, a Gemm with a transposed matrix, and a Softmax."""
    random = np.random.default_rng(0)
    stored = {
        "w": random.normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32),
        "v": random.normal(0, 0.2, (10, WIDTH)).astype(np.float32),
        "b": random.normal(0, 0.2, 10).astype(np.float32),
    }
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "b"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["p"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH]),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
    ]
    outputs = [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch", 10])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in stored.items()])
    path = tmp_path / "classifier.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    path = tmp_path / "data.npz"
    np.savez(path, x=random.standard_normal((24, WIDTH), np.float32), scale=np.float32(2.0))
    return path


def answer(path: Path, x: np.ndarray, scale: float = 2.0) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x, "scale": np.array(scale, np.float32)})[0])


def test_a_prepared_graph_computes_the_same_and_its_fixed_input_is_ignored(classifier: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared.onnx"
    products = prepare(str(classifier), str(out), values={"scale": 2.0}, shapes={"x": (1, WIDTH)})
    assert [(item.operator, item.weights) for item in products] == [("MatMul", WIDTH**2), ("MatMul", 10 * WIDTH)]
    x = np.random.default_rng(2).standard_normal((1, WIDTH), np.float32)
    np.testing.assert_allclose(answer(out, x), answer(classifier, x), atol=1e-6)
    np.testing.assert_allclose(answer(out, x, scale=7.0), answer(classifier, x), atol=1e-6)
    assert [axis.dim_value for axis in onnx.load(str(out)).graph.input[0].type.tensor_type.shape.dim] == [1, WIDTH]


@pytest.mark.parametrize(
    ("name", "most"),
    [("dynamic-channel", 0.02), ("static", 0.03), ("static-percentile", 0.03), ("int8-blocks", 0.02), ("int4", 0.25)],
)
def test_every_format_is_near_the_original_and_narrower_ones_are_farther(
    classifier: Path, tmp_path: Path, name: str, most: float
) -> None:
    prepared, out = tmp_path / "prepared.onnx", tmp_path / "out.onnx"
    products = prepare(str(classifier), str(prepared), values={}, shapes={})
    random = np.random.default_rng(3)
    feeds = [
        {"x": random.standard_normal((rows, WIDTH), np.float32), "scale": np.array(2.0, np.float32)}
        for rows in (1, 2, 3, 1) * 4
    ]
    maker = Maker(str(prepared), feeds, tmp_path)
    assert maker.make({item.node: name for item in products}, str(out)) == out.stat().st_size
    kinds = {node.op_type for node in onnx.load(str(out)).graph.node}
    assert kinds & {"MatMulInteger", "MatMulNBits", "QuantizeLinear"}  # something was quantised
    x = random.standard_normal((1, WIDTH), np.float32)
    exact, found = answer(classifier, x), answer(out, x)
    assert 0 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < most


def test_a_file_may_mix_blocks_with_ranges_that_are_found_as_it_runs(classifier: Path, tmp_path: Path) -> None:
    prepared, out = tmp_path / "prepared.onnx", tmp_path / "out.onnx"
    first, second = (item.node for item in prepare(str(classifier), str(prepared), values={}, shapes={}))
    Maker(str(prepared), [], tmp_path).make({first: "int8-blocks", second: "dynamic-channel"}, str(out))
    kinds = {node.op_type for node in onnx.load(str(out)).graph.node}
    assert {"MatMulNBits", "MatMulInteger"} <= kinds
    x = np.random.default_rng(6).standard_normal((3, WIDTH), np.float32)
    np.testing.assert_allclose(answer(out, x), answer(classifier, x), atol=0.02)


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A file that takes rows of a table and multiplies by the table again, with the table."""
    table = np.random.default_rng(4).normal(0, 0.2, (2048, WIDTH)).astype(np.float32)
    stored = {"table": table, "head": np.ascontiguousarray(table.T)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "head"], ["y"])]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "tokens"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "tokens", 2048])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in stored.items()])
    path = tmp_path / "tied.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path, table


def test_a_table_in_blocks_shares_the_numbers_of_the_product_with_the_same_weights(
    tied: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    prepared, out = str(tmp_path / "prepared.onnx"), str(tmp_path / "out.onnx")
    products = prepare(str(tied[0]), prepared, values={}, shapes={})
    assert [(item.operator, item.weights) for item in products] == [("Gather", 2048 * WIDTH), ("MatMul", 2048 * WIDTH)]
    assert not any("Gather" in name for name in uniform(products))  # a table saves no time
    size = Maker(prepared, [], tmp_path).make({item.node: "int8-blocks" for item in products}, out)
    assert size == pytest.approx(2048 * WIDTH * (1 + 4 / 32), rel=0.02)  # once, with a scale for each block of 32
    ids = np.array([[0, 7, 2047, 7]])
    given = ort.InferenceSession(out, providers=["CPUExecutionProvider"]).run(None, {"ids": ids})[0]
    exact = tied[1][ids] @ tied[1].T
    assert 0 < np.linalg.norm(given - exact) / np.linalg.norm(exact) < 0.02


@pytest.mark.parametrize(("ratio", "said"), [(0.5, "1 Gather int8-blocks"), (0.6, "1 Gather fp32")])
def test_tables_are_made_smaller_at_the_end_unless_that_costs_time(
    tied: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch, ratio: float, said: str
) -> None:
    def timed(_bench: object, first: str, second: str, *_rest: object) -> dict[str, float]:
        share = Path(second).stat().st_size / Path(first).stat().st_size
        return {
            "first_s": 1.0,
            "ratio": ratio if share < 0.2 else 0.5 if share < 0.9 else 1.0,
            "wins": 0.5,
            "seconds": 0.0,
        }

    def head(products: list[Product]) -> dict[str, dict[str, str]]:
        return {"int8-blocks, MatMul": {item.node: "int8-blocks" for item in products if item.operator == "MatMul"}}

    monkeypatch.setattr(onnx_file.Bench, "timed", timed)
    monkeypatch.setattr(onnx_file, "uniform", head)
    data = {"ids": np.random.default_rng(5).integers(2048, size=(16, 1, 4))}
    found = onnx_file.quantize(tied[0], data=data, loss="<= 5 %", out=tmp_path / "out.onnx", minutes=0)
    assert found.file is not None
    assert said in found.formats


def judge(*original: list[float], metric=None) -> Judge:
    arrays = {i: {"y": np.array(each, np.float32)} for i, each in enumerate(original)}
    return Judge(arrays, Samples([{} for _ in original], {}), metric)


def found(*rows: list[float]) -> dict[int, dict[str, np.ndarray]]:
    return {i: {"y": np.array(each, np.float32)} for i, each in enumerate(rows)}


def test_the_relative_error_is_that_of_all_samples() -> None:
    # differences 0.5 and 0 against (3, 4) and (0, 5): sqrt(0.25 / 50)
    loss = judge([3, 4], [0, 5]).loss(found([3, 4.5], [0, 5]))
    assert loss.value == pytest.approx(math.sqrt(0.25 / 50))
    assert loss.upper > loss.value


def test_probabilities_are_compared_by_their_divergence() -> None:
    halves = judge([0.5, 0.5], [0.5, 0.5])
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    loss = halves.loss(found([0.25, 0.75], [0.25, 0.75]))
    assert loss.value == pytest.approx(wanted, rel=1e-5)
    assert loss.upper == pytest.approx(wanted, rel=1e-5)  # samples agree, so leaving some out changes nothing
    assert halves.unit == "divergence in nats"


def test_outputs_that_are_not_finite_lose_everything_and_are_refused_in_the_original() -> None:
    assert judge([1, 2]).loss(found([math.nan, 2])).upper == math.inf
    with pytest.raises(MeasurementError, match="output 'y' is not finite for sample 1"):
        judge([1, 2], [math.inf, 1])


def test_whole_numbers_count_by_the_share_that_differs() -> None:
    assert kind_of([np.array([1, 2])]) == "share"
    assert kind_of([np.array([0.2, 0.8]), np.array([0.5, 0.5])]) == "nats"
    assert kind_of([np.array([0.2, 0.9])]) == "error"


def test_a_metric_loses_a_share_of_the_originals_score() -> None:
    def score(outputs: dict, data: dict) -> float:
        return float(sum(each.sum() for each in outputs["y"]))

    assert judge([4, 4], [4, 4], metric=score).loss(found([4, 4], [4, 3])).value == pytest.approx(1 / 16)
    with pytest.raises(InputError, match="the metric returns 0"):
        judge([1, -1], metric=score).loss(found([1, -1]))


def test_the_metric_is_a_function_of_a_named_file(tmp_path: Path) -> None:
    file = tmp_path / "metric.py"
    file.write_text("def score(outputs, data):\n    return 1.0\n", encoding="utf-8")
    assert load_metric(f"{file}:score")({}, {}) == 1.0
    with pytest.raises(SpecError, match="has no function other"):
        load_metric(f"{file}:other")
    with pytest.raises(SpecError, match=r"is not a file and a function; write both, as in metric\.py:score"):
        load_metric("metric.py")
    file.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(InputError, match=r"metric\.py:1: ZeroDivisionError"):
        load_metric(f"{file}:score")


def test_the_exact_choice_takes_what_saves_most_within_the_budget() -> None:
    candidates = {
        "a": [Candidate(format="int8", saved=0.3, loss={"y": 3.0})],
        "b": [
            Candidate(format="int8", saved=0.2, loss={"y": 1.0}),
            Candidate(format="int4", saved=0.25, loss={"y": 2.5}),
        ],
        "c": [Candidate(format="int8", saved=0.2, loss={"y": 1.0})],
    }
    assert mixed(candidates, {"y": 3.0}) == {"b": "int8", "c": "int8"}  # 0.4; a alone saves 0.3
    assert mixed(candidates, {"y": 3.5}) == {"b": "int4", "c": "int8"}  # 0.45
    assert mixed(candidates, {"y": 0.5}) == {}
    assert mixed(candidates, {"y": 9.0}) == {"a": "int8", "b": "int4", "c": "int8"}


def test_uniform_recipes_give_a_format_to_what_it_can_take() -> None:
    products = [Product(node="c", operator="Conv", weights=9), Product(node="m", operator="MatMul", weights=4)]
    recipes = uniform(products)
    assert recipes["int4, MatMul"] == {"m": "int4"}
    assert recipes["static, all products"] == {"c": "static", "m": "static"}
    assert recipes["static, all operators"][OTHERS] == "static"
    assert "int4, Conv" not in recipes
    assert told({"m": "int4"}, products) == "1 Conv fp32, 1 MatMul int4"


@pytest.mark.parametrize(("text", "share"), [("<= 1 %", 0.01), ("2%", 0.02), (0.5, 0.5), ("≤ 0.1 %", 0.001)])
def test_a_loss_is_a_share(text: str | float, share: float) -> None:
    assert onnx_file.parse_loss(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["<= 1 dB", "small", "-1 %", ">= 1 %"])
def test_a_loss_in_another_unit_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--loss"):
        onnx_file.parse_loss(text)


def test_a_stopped_run_goes_on_and_keeps_the_limit(classifier: Path, data: Path, tmp_path: Path, monkeypatch) -> None:
    for name in ("TRY_S", "FINAL_S"):
        monkeypatch.setattr(onnx_file, name, 0.01)
    monkeypatch.setattr(onnx_file, "ROUNDS", 2)
    out = tmp_path / "out.onnx"
    settings = {"data": data, "loss": "<= 5 %", "out": out, "minutes": 0.05}

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "uniform recipes" and done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        onnx_file.quantize(classifier, **settings, on_progress=stop)
    state = tmp_path / "out.onnx.state" / "state.json"
    known = json.loads(state.read_text(encoding="utf-8"))["answers"]
    assert sum(key.startswith("try ") for key in known) == 4
    with pytest.raises(StudyError, match="continue it with --resume"):
        onnx_file.quantize(classifier, **settings)
    with pytest.raises(StudyError, match="another file, data or settings"):
        onnx_file.quantize(classifier, **{**settings, "loss": "<= 1 %"}, resume=True)
    result = onnx_file.quantize(classifier, **settings, resume=True)
    before = {round(answer["answer"]["ratio"], 9) for key, answer in known.items() if key.startswith("try ")}
    assert before <= {round(item.ratio, 9) for item in result.tried if item.ratio is not None}
    assert not state.exists()
    assert out.exists() == (result.file is not None)
    assert result.choosing == result.scored == 12
    if result.file is not None:
        assert result.loss is not None
        assert result.loss <= 0.05
        assert result.ratio < 1 - result.repeatability


def test_bad_requests_are_refused_before_anything_runs(classifier: Path, data: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.npz"
    np.savez(few, x=np.zeros((3, WIDTH), np.float32), scale=np.float32(1.0))
    with pytest.raises(InputError, match="holds 3 samples; at least 8"):
        onnx_file.quantize(classifier, data=few, out=tmp_path / "o.onnx")
    with pytest.raises(InputError, match="this is the input file"):
        onnx_file.quantize(classifier, data=data, out=classifier)
    with pytest.raises(SpecError, match="there is no such file"):
        onnx_file.quantize(classifier, data=tmp_path / "none.npz", out=tmp_path / "o.onnx")


def test_a_custom_operator_is_named_in_one_line(classifier: Path, data: Path, tmp_path: Path) -> None:
    model = onnx.load(str(classifier))
    model.graph.node[2].op_type, model.graph.node[2].domain = "MyRelu", "mine"
    model.opset_import.append(helper.make_opsetid("mine", 1))
    custom = tmp_path / "custom.onnx"
    onnx.save(model, str(custom))
    with pytest.raises(MeasurementError, match="MyRelu") as caught:
        onnx_file.quantize(custom, data=data, out=tmp_path / "o.onnx")
    assert "\n" not in str(caught.value)
