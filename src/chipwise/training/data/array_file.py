"""Stores a data set as named arrays in one ``.npz`` file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.files import storage, write_atomic
from chipwise.errors import DataError

T = TypeVar("T")


def write_arrays(path: Path, arrays: Mapping[str, AnyArray], *, packed: bool = False) -> None:
    """Writes named arrays to one file, which is replaced atomically; ``packed`` says whether to compress them."""
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, **arrays)  # type: ignore[arg-type]
    with storage(path):
        write_atomic(path, stream.getvalue())


def read_arrays(path: str | Path, made: Callable[[Mapping[str, AnyArray]], T], *, what: str = "data") -> T:
    """Reads the arrays of a file, and returns the object that ``made`` builds from them.

    Raises:
        DataError: The file is missing or is not what :func:`write_arrays` writes, or ``made`` raised a KeyError.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return made(file)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; it should contain {what}") from None
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a file of {what} ({error}); delete it, and it will be created again") from None
