"""Inputs of any ONNX graph, and data for them: generated from names and types, or given as ``.npz`` files.

Arrays are read without pickles.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError, SpecError, UnknownName
from chipwise.model.graphs.graph import UNNAMED, GraphInput

Feed = dict[str, AnyArray]
"""An array for each input of a graph."""
Shapes = Mapping[str, tuple[int, ...]]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Maps inputs to shapes, which are given as texts such as ``x=1,3,48,320``.

    >>> parse_shapes(["x=1,3,48,320"])
    {'x': (1, 3, 48, 320)}

    Raises:
        SpecError: A text does not have this form.
    """
    found = {}
    for text in texts:
        match = re.fullmatch(r"\s*([^=]+?)\s*=\s*(\d{1,9}(?:\s*[,x]\s*\d{1,9})*)\s*", text)
        if match is None or 0 in (sizes := tuple(int(size) for size in re.split(r"[,x]", match[2]))):
            raise SpecError(f"{text!r} is not the shape of an input; write it like x=1,3,224,224", field="--shape")
        found[match[1]] = sizes
    return found


def parse_values(texts: Sequence[str]) -> dict[str, float]:
    """Maps inputs to fixed values, which are given as texts such as ``sr=16000``.

    >>> parse_values(["sr=16000"])
    {'sr': 16000.0}

    Raises:
        SpecError: A text does not have this form.
    """
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float({"true": "1", "false": "0"}.get(value.strip().lower(), value))
        except ValueError:
            raise SpecError(f"{text!r} is not the value of an input; write it like sr=16000", field="--value") from None
    return found


def made_feed(
    path: str | Path, inputs: Sequence[GraphInput], shapes: Shapes, values: Mapping[str, float], *, seed: int
) -> Feed:
    """Random data: numbers from a normal distribution, indices within their tables, masks of ones.

    An open (dynamic) first axis is the batch; its size is 1 unless ``shapes`` gives another one. ``shapes`` must give
    the sizes of all other open axes.

    Raises:
        UnknownName: A name in ``shapes`` or ``values`` is not an input.
        SpecError: An axis is open, or a shape contradicts the graph.
    """
    check_names(path, inputs, [*shapes, *values])
    random = np.random.default_rng(seed)
    return {item.name: _made(path, item, shapes.get(item.name), values.get(item.name), random) for item in inputs}


def _made(
    path: str | Path,
    item: GraphInput,
    shape: tuple[int, ...] | None,
    value: float | None,
    random: np.random.Generator,
) -> AnyArray:
    known = _fixed(path, item, shape)
    sizes = [1 if isinstance(size, str) and not i else size for i, size in enumerate(known)]
    if any(isinstance(size, str) for size in sizes):
        example = ",".join("…" if isinstance(size, str) else str(size) for size in sizes)
        raise SpecError(
            f"its input {item.name!r} has shape {item.said()}; give sizes for its open (dynamic) axes with --shape "
            f"{item.name}={example}",
            file=str(path),
        )
    whole = tuple(map(int, sizes))
    if value is not None:
        return np.full(whole, value).astype(item.dtype)
    if item.dtype.kind in "iub":
        if item.dtype.kind == "b" or "mask" in item.name.lower():
            return np.ones(whole, item.dtype)
        return random.integers(0, item.rows or 2, whole).astype(item.dtype)
    if "mask" in item.name.lower():
        return np.ones(whole, item.dtype)
    return random.standard_normal(whole).astype(item.dtype)


def with_shapes(path: str | Path, inputs: Sequence[GraphInput], shapes: Shapes) -> tuple[GraphInput, ...]:
    """Returns the inputs with open axes fixed as in ``shapes``; axes with the same names in other inputs are fixed too.

    Raises:
        UnknownName: A name in ``shapes`` is not an input.
        SpecError: A shape contradicts the graph.
    """
    check_names(path, inputs, list(shapes))
    sizes: dict[int | str, int | str] = {}
    for item in inputs:
        sizes |= zip(item.shape, _fixed(path, item, shapes.get(item.name)), strict=True) if item.name in shapes else ()
    sizes.pop(UNNAMED, None)
    named = [replace(item, shape=tuple(sizes.get(axis, axis) for axis in item.shape)) for item in inputs]
    return tuple(replace(item, shape=_fixed(path, item, shapes.get(item.name))) for item in named)


def _fixed(path: str | Path, item: GraphInput, shape: tuple[int, ...] | None) -> tuple[int | str, ...]:
    if shape is not None and not item.fits(shape):
        raise SpecError(f"its input {item.name!r} has shape {item.said()}, which cannot be {shape}", file=str(path))
    return item.shape if shape is None else shape


def check_names(path: str | Path, inputs: Sequence[GraphInput], names: Sequence[str]) -> None:
    """Checks that ``names`` are inputs.

    Raises:
        UnknownName: A name is not an input.
    """
    known = [item.name for item in inputs]
    for name in names:
        if name not in known:
            raise UnknownName(f"input of {Path(path).name}", name, known)


def read_arrays(path: str | Path) -> Feed:
    """The arrays of a ``.npz`` file; for a folder, those of all ``.npz`` files, named by the file's number: ``3/x``.

    Raises:
        SpecError: There is no such file, it is not a ``.npz`` file, it holds Python objects, or it is empty.
    """
    folder = Path(path)
    if folder.is_dir():
        files = sorted(folder.glob("*.npz"))
        if not files:
            raise SpecError("this folder holds no .npz files", file=str(path))
        return {f"{i}/{name}": array for i, file in enumerate(files) for name, array in read_arrays(file).items()}
    if not folder.is_file():
        raise SpecError("there is no such file", file=str(path))
    try:
        with np.load(folder, allow_pickle=False) as held:
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array; save it with np.savez, under the name of its input")
            found = {name: np.asarray(held[name]) for name in held.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise SpecError(f"is not a .npz file of plain arrays: {error}", file=str(path)) from None
    if not found or any(array.size == 0 for array in found.values()):
        raise SpecError("is empty: it has no array, or one without elements", file=str(path))
    return found


def write_arrays(path: str | Path, arrays: Feed) -> None:
    """Writes a ``.npz`` file that :func:`read_arrays` reads back."""
    with zipfile.ZipFile(path, "w") as held:
        for name, array in arrays.items():
            with held.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def given_feed(path: str | Path, inputs: Sequence[GraphInput], data: str | Path, values: Mapping[str, float]) -> Feed:
    """One feed from the ``.npz`` file ``data``. An input that the file lacks is filled with its number in ``values``.

    Raises:
        SpecError: The data lack an input, or an array has another type or shape.
        UnknownName: An array is not an input.
    """
    arrays = read_arrays(data)
    check_names(path, inputs, [*arrays, *values])
    return {item.name: checked(item, _given(item, arrays, values, data), data) for item in inputs}


def _given(item: GraphInput, arrays: Feed, values: Mapping[str, float], data: str | Path) -> AnyArray:
    if item.name in values and item.name not in arrays:
        return np.full([size if isinstance(size, int) else 1 for size in item.shape], values[item.name], item.dtype)
    if item.name not in arrays:
        raise SpecError(f"has no array for the input {item.name!r} {item.said()}", file=str(data))
    return arrays[item.name]


def checked(item: GraphInput, array: AnyArray, data: str | Path) -> AnyArray:
    """Returns ``array`` if it has the type and the shape of the input ``item``.

    Raises:
        SpecError: The type or the shape differs, or a value is not finite.
    """
    if array.dtype != item.dtype:
        raise SpecError(f"{item.name!r} must be {item.dtype}, not {array.dtype}", file=str(data))
    if not item.fits(array.shape):
        raise SpecError(f"{item.name!r} must have shape {item.said()}, not {array.shape}", file=str(data))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise SpecError(f"{item.name!r} has values that are not finite", file=str(data))
    return np.ascontiguousarray(array)


@dataclass(frozen=True, slots=True)
class Samples:
    """One feed of a graph for each sample, and arrays for a metric, such as labels, with one row for each sample."""

    feeds: Sequence[Feed]
    extra: Feed


def samples_of(
    path: str | Path,
    inputs: Sequence[GraphInput],
    data: str | Path,
    values: Mapping[str, float],
    *,
    with_extra: bool,
) -> Samples:
    """Splits ``data`` into samples.

    If an array has one axis more than its input, the samples are along the array's first axis. If both have the same
    number of axes, the samples are along the first axis, too; in the input, this axis must be a batch (1 or open). In a
    folder, each ``.npz`` file is one sample, in the input's own shape. Arrays that are not inputs are for the metric.

    Raises:
        SpecError: An array has another type or shape, or the numbers of samples differ.
        UnknownName: An array is not an input, and ``with_extra`` is false.
    """
    arrays = read_arrays(data)
    if Path(data).is_dir():
        count = len({name.partition("/")[0] for name in arrays})
        parts = [
            {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{i}/")}
            for i in range(count)
        ]
        check_names(path, inputs, [name for part in parts for name in part] if not with_extra else list(values))
        feeds = [
            {item.name: checked(item, _given(item, part, values, data), data) for item in inputs} for part in parts
        ]
        names = {name for part in parts for name in part} - {item.name for item in inputs}
        return Samples(feeds, {name: np.array([part[name] for part in parts]) for name in sorted(names)})
    by_name = {item.name: item for item in inputs}
    check_names(path, inputs, list(values) if with_extra else [*arrays, *values])
    shared = {name: array for name, array in arrays.items() if name in by_name and not by_name[name].shape}
    shared = {name: array for name, array in shared.items() if not array.ndim}  # one value for all samples
    rows: dict[str, Sequence[AnyArray]] = {
        name: _rows(by_name[name], array, data) if name in by_name else list(array)
        for name, array in arrays.items()
        if name not in shared
    }
    if not rows:
        raise SpecError("holds no samples", file=str(data))
    count = max(map(len, rows.values()))
    for name, each in rows.items():
        if len(each) != count:
            raise SpecError(f"{name!r} has {len(each)} samples, and other arrays have {count}", file=str(data))
    feeds = []
    for i in range(count):
        here = shared | {name: each[i] for name, each in rows.items()}
        feeds.append({item.name: checked(item, _given(item, here, values, data), data) for item in inputs})
    return Samples(feeds, {name: array for name, array in arrays.items() if name not in by_name})


def _rows(item: GraphInput, array: AnyArray, data: str | Path) -> Sequence[AnyArray]:
    rank = len(item.shape)
    if array.ndim == rank + 1:
        return list(array)
    if array.ndim == rank > 0 and (item.shape[0] == 1 or isinstance(item.shape[0], str)):
        return [array[i : i + 1] for i in range(len(array))]
    raise SpecError(
        f"{item.name!r} must hold samples of shape {item.said()} along a first axis, not {array.shape}", file=str(data)
    )


def check_samples(samples: Samples, least: int, data: str | Path) -> None:
    """Checks that there are at least ``least`` samples.

    Raises:
        InputError: There are fewer samples.
    """
    if len(samples.feeds) < least:
        raise InputError(f"{data}: holds {len(samples.feeds)} samples; at least {least} are needed")
