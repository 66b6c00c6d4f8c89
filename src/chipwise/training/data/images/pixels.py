"""Images as arrays: split into parts, written as PNG, and described for an image processor of transformers."""

from __future__ import annotations

import base64
import io
import struct
import zlib
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
    """Reads the images of a run, split into parts.

    Raises:
        DataError: The images are missing or too few.
        SpecError: Their number of classes is not the one in the space.
    """
    if spec.source == "folder":
        _require_classes(len(folder_classes(spec, base)), image)  # checked before images are decoded
    found = read_pixels(spec, base, size=image.size, channels=image.channels)
    _require_classes(len(found.classes), image)
    return found, divided(found, share=spec.validation_share)


def _require_classes(count: int, image: ImageSpace) -> None:
    if count != image.classes:
        raise SpecError(f"must be {count}, the classes of the data, not {image.classes}", field="space.image.classes")


def divided(found: LabelledPixels, *, share: float) -> Parts:
    """Training, validation and test parts, (n, C, Y, X) with labels, stratified by class.

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
    """An image (C, Y, X) as a data URI."""
    with optional_imports():
        from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def grey_png(pixels_YX: NDArray[np.uint8]) -> bytes:
    """A grey image as the bytes of a PNG file.

    References:
        PNG specification, W3C, third edition: chunks, section 5; filter type 0 of every row, section 9.
    """
    rows, columns = pixels_YX.shape
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels_YX)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    made = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def scales_of(pixels: NDArray[np.uint8]) -> Scales:
    """Mean and deviation of each channel of images (n, C, Y, X), used to scale inputs."""
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
