"""Reads columns of a user's Parquet file.

A file is rejected before its rows are read if its metadata give too large an uncompressed size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chipwise.core.extras import optional_imports
from chipwise.core.packed import check_unpacked
from chipwise.errors import DataError


def read_columns(path: Path, columns: Sequence[str]) -> list[list[Any]]:
    """The values of the ``columns``, in this order; the file must have at least one row.

    Raises:
        DataError: The file is missing, truncated, lacks a column, or has no rows.
        SpecError: The file's uncompressed size is too large.
        MissingExtra: pyarrow is not installed.
    """
    with optional_imports():
        import pyarrow
        from pyarrow import parquet

    if not os.path.isfile(path):
        raise DataError(f"{path}: there is no such file")
    try:
        with parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            check_unpacked(sum(group.total_byte_size for group in groups), path.stat().st_size, file=path)
            known = file.schema_arrow.names
            if lacking := [name for name in columns if name not in known]:
                raise DataError(f"{path}: has no column {lacking[0]!r}; it needs {', '.join(columns)}")
            table = file.read(columns=list(columns))
            found = [table.column(name).to_pylist() for name in columns]
    except (pyarrow.ArrowException, ValueError, OSError, KeyError, TypeError, MemoryError) as error:
        raise DataError(f"{path}: not a complete Parquet file with {', '.join(columns)}: {error}") from None
    if not found[0]:
        raise DataError(f"{path}: holds no rows")
    return found
