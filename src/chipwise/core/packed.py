"""Reads compressed files. First checks the unpacked size that a file declares, to reject decompression bombs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.files import read_bytes
from chipwise.errors import SpecError

MOST_UNPACKED_BYTES = 2**31
MOST_TIMES, SMALL_BYTES = 200, 2**26  # largest expansion factor beyond this unpacked size; images reach at most 20


def check_unpacked(unpacked: int, packed: int, *, file: str | Path) -> None:
    """Checks the unpacked size that a compressed file declares.

    Raises:
        SpecError: The unpacked size is too large, or implausibly many times the file's size.
    """
    if unpacked > MOST_UNPACKED_BYTES:
        most = MOST_UNPACKED_BYTES / 2**30
        raise SpecError(f"unpacks to {unpacked / 2**30:,.1f} GiB; at most {most:g} GiB are read", file=str(file))
    if unpacked > max(SMALL_BYTES, MOST_TIMES * packed):
        times = unpacked // max(1, packed)
        raise SpecError(
            f"unpacks to {unpacked / 2**20:,.0f} MiB, {times:,} times its size, which is implausible for data",
            file=str(file),
        )


def read_npz(path: Path, names: Sequence[str], *, optional: Sequence[str] = ()) -> dict[str, AnyArray]:
    """Reads arrays from an ``.npz`` file: all of ``names``, and those of ``optional`` that it contains.

    Nothing is unpickled.

    Raises:
        SpecError: The file cannot be read, is not an ``.npz``, lacks an array, or unpacks to too many bytes.
    """
    content = read_bytes(path, most=MOST_UNPACKED_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise SpecError(f"not an .npz file: {error}", file=str(path)) from None
    wanted = [*names, *(name for name in optional if name in members)]
    for name in wanted:
        if name not in members:
            raise SpecError(f"holds no array {name!r}; it needs {' and '.join(names)}", file=str(path))
    check_unpacked(sum(members[name] for name in wanted), len(content), file=path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            found = {name: file[name] for name in wanted}
    except (ValueError, KeyError, EOFError, OSError, SyntaxError, MemoryError, zipfile.BadZipFile) as error:
        raise SpecError(f"not a complete .npz file: {error or type(error).__name__}", file=str(path)) from None
    for name, value in found.items():
        if not isinstance(value, np.ndarray):
            raise SpecError(f"{name!r} is not an array", file=str(path))
    return found
