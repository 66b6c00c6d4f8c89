"""Images in the folder of a run: one file of arrays for all trainings; exported graphs are judged image by image."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.extras import optional_imports
from chipwise.core.files import read_mapping, storage, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import DataError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import LabelledArrays, load_arrays, save_arrays
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.tasks.exported_classifier import confusion, errors_in, logits_of
from chipwise.training.tasks.made import is_made
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.vision.sources import ImagesSpec, LabelledPixels, folder_classes, read_pixels

QUICK = 2_000  # images that short trainings are judged on
FEWEST = 20  # images of the smallest class
SHOWN = 20  # test images in the report
BATCH = 128
Parts = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
"""Images (n, C, Y, X) and labels of training, validation and test data."""


class VisionData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        spec: Where images come from.
        base: Where its paths start.
        folder: Where the file of arrays is kept.
        image: The size, channels and classes that the space is for.
    """

    recipe: Mapping[str, Any] = {"batch_windows": BATCH}
    quick = QUICK

    def __init__(self, spec: ImagesSpec, base: Path, folder: Path, image: ImageSpace) -> None:
        self.spec, self.base, self.folder, self.image = spec, base, folder, image

    @property
    def path(self) -> Path:
        """The file of arrays."""
        return self.folder / "images.npz"

    @property
    def facts(self) -> Path:
        """What the file was made of: source, licence, counts."""
        return self.folder / "images.json"

    def prepare(self) -> None:
        """Reads the images, divides them and writes them once."""
        wanted = digest([self.spec, self.image.size, self.image.channels, self.image.classes])
        if is_made(self.facts, wanted, entries="images"):
            return
        found, parts = read_parts(self.spec, self.base, self.image)
        pixels = parts["train"][0].astype(np.float32)
        axes = (0, 2, 3)
        data = LabelledArrays(
            **parts,
            classes=found.classes,
            mean=pixels.mean(axes)[:, None, None],
            std=np.maximum(pixels.std(axes), 1.0)[:, None, None],
        )
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        save_arrays(self.path, data)
        flip = found.flip if self.spec.flip is None else self.spec.flip
        facts = {"source": found.source, "licence": found.licence, "flip": flip, "identity": wanted}
        write_json(self.facts, facts)  # last: the file of arrays is whole

    @cached_property
    def arrays(self) -> LabelledArrays:
        """The images of all parts."""
        return load_arrays(self.path)

    def summary(self) -> Mapping[str, Any]:
        """Images and bytes of each part, source and licence."""
        facts = read_mapping(self.facts)
        found = {"name": self.spec.source, "source": facts["source"], "licence": facts["licence"]}
        for name, (inputs, labels) in (
            ("train", self.arrays.train),
            ("val", self.arrays.validation),
            ("test", self.arrays.test),
        ):
            found |= {f"entries_{name}": len(labels), f"bytes_{name}": int(inputs.nbytes)}
        return found

    def data(self, arch: ArchSpec) -> DataFile:
        """The images, shifted while they are learnt, and mirrored where that keeps their labels."""
        flip = read_mapping(self.facts)["flip"]
        return DataFile(path=str(self.path), kind="flipped-images" if flip else "images")

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions of a batch of images."""
        return BATCH * arch.max_tokens

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an image over the positions that a stem makes of it."""
        each = self.image.size**2 * self.image.channels
        grid = self.image.size // space.values(rows, "patch").astype(np.int64)
        first = (space.values(rows, "pooling") == "first").astype(np.int64)
        return np.asarray(each / (grid**2 + first), np.float64)

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """1 for each image that the exported graph gets wrong, one image at a time as it serves them."""
        values = errors_in(item, self.arrays, split)
        return Losses(values=values, sizes=np.ones(len(values)))

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Some test images with labels and answers, and the winner's confusion matrix over all of them."""
        inputs, labels = self.arrays.test
        classes = self.arrays.classes
        said = {"winner": logits_of(winner, self.arrays, "test")[0].argmax(1)}
        if reference is not None:
            said["baseline"] = logits_of(reference, self.arrays, "test")[0].argmax(1)
        images = [
            {"image": png(inputs[i]), "label": classes[labels[i]]} | {who: classes[a[i]] for who, a in said.items()}
            for i in chosen(labels, said["winner"])
        ]
        return {
            "images": images,
            "confusion": confusion(labels, said["winner"], len(classes)),
            "classes": list(classes),
        }

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """The Hugging Face folder with the names of the classes, and how an image is prepared for it."""
        arch, arrays = item.design.arch, self.arrays
        save_pretrained(arch, item.weights, None, folder, dict(files))
        write_json(folder / "config.json", read_mapping(folder / "config.json") | labels_of(arch, arrays.classes))
        write_json(folder / "preprocessor_config.json", _preprocessor(arrays, self.image))


def read_parts(spec: ImagesSpec, base: Path, image: ImageSpace) -> tuple[LabelledPixels, Parts]:
    """The images of a run, and their parts.

    Raises:
        DataError: The images are missing or too few.
        SpecError: They have another number of classes than the space.
    """
    if spec.source == "folder":
        _require_classes(len(folder_classes(spec, base)), image)  # before anything is decoded
    found = read_pixels(spec, base, size=image.size, channels=image.channels)
    _require_classes(len(found.classes), image)
    return found, divided(found, share=spec.validation_share)


def _require_classes(count: int, image: ImageSpace) -> None:
    if count != image.classes:
        raise SpecError(f"must be {count}, the classes of the data, not {image.classes}", field="space.image.classes")


def divided(found: LabelledPixels, *, share: float) -> Parts:
    """Training, validation and test parts, (n, C, Y, X) with labels; each class is divided alike.

    Raises:
        DataError: A class has too few images.
    """
    counts = np.bincount(found.labels, minlength=len(found.classes))
    if counts.min() < FEWEST:
        name = found.classes[int(counts.argmin())]
        raise DataError(f"class {name!r} has {counts.min()} images; each needs at least {FEWEST}")
    generator = np.random.default_rng(0)
    held: dict[str, list[NDArray[np.intp]]] = {"train": [], "validation": [], "test": []}
    for label, count in enumerate(counts):
        rows = generator.permutation(np.flatnonzero(found.labels == label))
        size = max(1, round(share * count))
        ends = (size, size if found.tests is not None else 2 * size)
        for name, some in zip(("validation", "test", "train"), np.split(rows, ends), strict=True):
            held[name].append(some)
    rows_of = {name: np.concatenate(parts) for name, parts in held.items()}

    def part(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), labels

    parts = {}
    for name, rows in rows_of.items():
        rows = generator.permutation(rows)
        parts[name] = part(found.pixels[rows], found.labels[rows])
    return parts if found.tests is None else parts | {"test": part(*found.tests)}


def chosen(labels: NDArray[np.int64], said: NDArray[np.int64]) -> list[int]:
    """Test images to show: half of them the first of each class in turn, half the first that are wrong."""
    turns = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    first = [int(rows[turn]) for turn in range(SHOWN) for rows in turns if turn < len(rows)][: SHOWN // 2]
    wrong = [int(i) for i in np.flatnonzero(labels != said) if int(i) not in first][: SHOWN - len(first)]
    return first + wrong


def png(pixels: NDArray[np.uint8]) -> str:
    """An image (C, Y, X) as a data URI."""
    with optional_imports():
        from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _preprocessor(arrays: LabelledArrays, image: ImageSpace) -> dict[str, Any]:
    """The settings of a ``ViTImageProcessor`` that prepares images as they were learnt."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": image.size, "width": image.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": (arrays.mean.ravel() / 255).tolist(),
        "image_std": (arrays.std.ravel() / 255).tolist(),
    }
