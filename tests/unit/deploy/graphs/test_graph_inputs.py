"""Inputs of a graph are read from the file; random and given data match them, or one error line says why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from chipwise.deploy.graphs.inputs import (  # noqa: E402
    given_feed,
    made_feed,
    parse_shapes,
    parse_values,
    samples_of,
    with_shapes,
    write_arrays,
)
from chipwise.deploy.graphs.reading import inputs_of  # noqa: E402
from chipwise.errors import InputError, SpecError, UnknownName  # noqa: E402


@pytest.fixture
def text_model(tmp_path: Path) -> Path:
    """An embedding of 7 rows by an open batch of open length, times a mask."""
    table = numpy_helper.from_array(np.eye(7, 4, dtype=np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["rows"]),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["weights"]),
        helper.make_node("Mul", ["rows", "weights"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "tokens"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "tokens"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", 4])]
    axes = numpy_helper.from_array(np.array([2]), "axes")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table, axes])
    path = tmp_path / "text.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_inputs_are_read_with_open_axes_and_the_rows_of_the_embedding(text_model: Path) -> None:
    ids, mask = inputs_of(text_model)
    assert (ids.name, ids.dtype, ids.shape, ids.rows) == ("ids", np.int32, ("batch", "tokens"), 7)
    assert (mask.name, mask.dtype, mask.rows) == ("mask", np.float32, None)


def test_made_indices_stay_in_the_table_and_masks_are_ones(text_model: Path) -> None:
    feed = made_feed(text_model, inputs_of(text_model), {"ids": (3, 50), "mask": (3, 50)}, {}, seed=0)
    assert feed["ids"].dtype == np.int32
    assert set(np.unique(feed["ids"])) == set(range(7))  # 150 draws of 7 rows
    assert (feed["mask"] == 1).all()


def test_an_open_axis_other_than_the_batch_is_asked_for_by_name(text_model: Path) -> None:
    said = r"'ids' has shape \(batch, tokens\); give sizes for its open \(dynamic\) axes with --shape ids=1,…"
    with pytest.raises(SpecError, match=said):
        made_feed(text_model, inputs_of(text_model), {}, {}, seed=0)


@pytest.mark.parametrize(
    ("shapes", "values", "error", "words"),
    [
        ({"idz": (1, 4)}, {}, UnknownName, "did you mean 'ids'"),
        ({}, {"sr": 1.0}, UnknownName, "input of text.onnx 'sr'"),
        ({"ids": (1, 4, 4)}, {}, SpecError, "cannot be"),
    ],
)
def test_wrong_names_and_shapes_are_refused(text_model: Path, shapes, values, error, words) -> None:
    with pytest.raises(error, match=words):
        made_feed(text_model, inputs_of(text_model), shapes, values, seed=0)


@pytest.mark.parametrize("text", ["x", "x=", "x=1,a", "x=0,2", "=1,2"])
def test_a_shape_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(SpecError, match="x=1,3,224,224"):
        parse_shapes([text])


def test_a_value_that_cannot_be_read_says_how_to_write_it() -> None:
    assert parse_values(["flag=false", "on=true"]) == {"flag": 0.0, "on": 1.0}
    with pytest.raises(SpecError, match="sr=16000"):
        parse_values(["sr"])


def test_broken_files_and_missing_weights_give_one_line(tmp_path: Path, text_model: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(text_model.read_bytes()[:-40])
    with pytest.raises(SpecError, match=r"broken\.onnx: not an ONNX file, or a damaged one"):
        inputs_of(broken)
    with pytest.raises(SpecError, match="there is no such file"):
        inputs_of(tmp_path / "none.onnx")
    apart = tmp_path / "apart.onnx"
    onnx.save(onnx.load(str(text_model)), str(apart), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert len(inputs_of(apart)) == 2
    (tmp_path / "w.bin").unlink()
    with pytest.raises(SpecError, match=r"its weights are in w\.bin, which is missing"):
        inputs_of(apart)


def test_axes_of_the_same_name_have_the_same_size(text_model: Path) -> None:
    inputs = with_shapes(text_model, inputs_of(text_model), {"ids": (2, 9)})
    assert [item.shape for item in inputs] == [(2, 9), (2, 9)]
    assert made_feed(text_model, inputs, {}, {}, seed=0)["mask"].shape == (2, 9)
    with pytest.raises(SpecError, match="cannot be"):
        with_shapes(text_model, inputs_of(text_model), {"ids": (2, 9), "mask": (2, 8)})


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_rows_of_a_batch_and_arrays_with_one_axis_more_are_the_same_samples(text_model: Path, tmp_path: Path) -> None:
    inputs = inputs_of(text_model)
    ids, mask = np.arange(20, dtype=np.int32).reshape(5, 4) % 7, np.ones((5, 4), np.float32)
    flat = samples_of(text_model, inputs, saved(tmp_path / "a.npz", ids=ids, mask=mask), {}, with_extra=False)
    deep = samples_of(
        text_model, inputs, saved(tmp_path / "b.npz", ids=ids[:, None], mask=mask[:, None]), {}, with_extra=False
    )
    assert len(flat.feeds) == len(deep.feeds) == 5
    for a, b in zip(flat.feeds, deep.feeds, strict=True):
        assert a["ids"].shape == (1, 4)
        assert (a["ids"] == b["ids"]).all()


def test_files_of_a_folder_are_samples_of_any_length_and_labels_come_along(text_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        feed = {"ids": np.zeros((1, 2 + i), np.int32), "mask": np.ones((1, 2 + i), np.float32), "label": np.array(i)}
        write_arrays(folder / f"{i}.npz", feed)
    found = samples_of(text_model, inputs_of(text_model), folder, {}, with_extra=True)
    assert [feed["ids"].shape[1] for feed in found.feeds] == [2, 3, 4]
    assert found.extra["label"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"ids": np.zeros((5, 4), np.int64), "mask": np.ones((5, 4), np.float32)}, "'ids' must be int32, not int64"),
        ({"ids": np.zeros((5, 4), np.int32), "mask": np.ones((4, 4), np.float32)}, "has 4 samples, and other arrays"),
        ({"ids": np.zeros((5, 4), np.int32)}, "has no array for the input 'mask'"),
        ({"ids": np.zeros(5, np.int32), "mask": np.ones((5, 4), np.float32)}, "must hold samples of shape"),
        ({"ids": np.zeros((5, 4), np.int32), "mask": np.full((5, 4), np.nan, np.float32)}, "not finite"),
        ({"ids": np.zeros((0, 4), np.int32), "mask": np.ones((0, 4), np.float32)}, "is empty"),
        ({"idz": np.zeros((5, 4), np.int32)}, "unknown input of text.onnx 'idz'"),
    ],
)
def test_data_that_do_not_fit_are_refused(text_model: Path, tmp_path: Path, arrays, words: str) -> None:
    with pytest.raises(InputError, match=words):
        samples_of(text_model, inputs_of(text_model), saved(tmp_path / "a.npz", **arrays), {}, with_extra=False)


def test_pickles_and_other_files_are_no_data(text_model: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "p.npz"
    np.savez(pickled, ids=np.array([{}], dtype=object))
    for path in (pickled, text_model):
        with pytest.raises(SpecError, match=r"is not a \.npz file of plain arrays"):
            given_feed(text_model, inputs_of(text_model), path, {})


def test_fixed_axes_are_those_of_the_data(text_model: Path, tmp_path: Path) -> None:
    fixed = with_shapes(text_model, inputs_of(text_model), {"ids": (1, 8)})
    assert fixed[0].shape == (1, 8)
    data = saved(tmp_path / "a.npz", ids=np.zeros((1, 9), np.int32), mask=np.ones((1, 9), np.float32))
    with pytest.raises(SpecError, match=r"'ids' must have shape \(1, 8\), not \(1, 9\)"):
        given_feed(text_model, fixed, data, {})
