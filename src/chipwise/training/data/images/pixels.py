"""Functions for images as arrays: reading, splitting, PNG output, and settings of transformers' image processor."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.extras import optional_imports
from chipwise.errors import DataError, SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.training.data.arrays import Scales
from chipwise.training.data.images.sources import ImagesSpec, LabelledPixels, folder_classes, read_pixels

FEWEST = 20  # images in the smallest class
Parts = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
"""Images (n, C, Y, X) and labels of training, validation and test data."""


def read_parts(spec: ImagesSpec, base: Path, image: ImageSpace) -> tuple[LabelledPixels, Parts]:
    """Reads a run's images, and splits them into training, validation and test parts.

    Raises:
        DataError: The images are missing or too few.
        SpecError: The number of classes in the space differs from that in the data.
    """
    if spec.source == "folder":
        _require_classes(len(folder_classes(spec, base)), image)  # checked before images are decoded
    found = read_pixels(spec, base, size=image.size, channels=image.channels)
    _require_classes(len(found.classes), image)
    return found, divided(found, share=spec.validation_share)


def _require_classes(count: int, image: ImageSpace) -> None:
    if count != image.classes:
        raise SpecError(f"must be {count}, the number in the data, not {image.classes}", field="space.image.classes")


def divided(found: LabelledPixels, *, share: float) -> Parts:
    """Splits images (n, C, Y, X) and labels into training, validation and test parts, stratified by class.

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


def png(pixels: NDArray[np.uint8]) -> str:
    """An image (C, Y, X) as a PNG data URI."""
    with optional_imports():
        from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def scales_of(pixels: NDArray[np.uint8]) -> Scales:
    """Mean and standard deviation of each channel of images (n, C, Y, X), for scaling inputs."""
    values, axes = pixels.astype(np.float32), (0, 2, 3)
    return values.mean(axes)[:, None, None], np.maximum(values.std(axes), 1.0)[:, None, None]


def image_processor(size: int, mean: NDArray[np.float32], std: NDArray[np.float32]) -> dict[str, object]:
    """Settings of a ``ViTImageProcessor`` that prepares images of ``size`` pixels as in training."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": (mean.ravel() / 255).tolist(),
        "image_std": (std.ravel() / 255).tolist(),
    }
