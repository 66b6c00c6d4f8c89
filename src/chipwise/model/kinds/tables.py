"""Names of embedding tables in run files.

``full`` has rows as wide as the model. ``w16`` has rows of 16 values, which a matrix turns into the model's width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from chipwise.errors import SpecError

FULL = "full"  # rows as wide as the model
_TABLE = re.compile(r"w\d+")


def table_name(width: int) -> str:
    """The name of a table with rows of ``width`` values; 0 is the model's width.

    >>> table_name(16), table_name(0)
    ('w16', 'full')
    """
    return f"w{width}" if width else FULL


def table_width(table: str) -> int:
    """Row width of a table, from its name in a run file; 0 is the model's width.

    >>> table_width("w16"), table_width("full")
    (16, 0)
    """
    return 0 if table == FULL else int(table[1:])


def check_tables(tables: Iterable[str]) -> None:
    """Checks the names of tables in a run file.

    Raises:
        SpecError: One of the names is unknown.
    """
    for table in tables:
        if table != FULL and not (_TABLE.fullmatch(table) and table_width(table)):
            raise SpecError(f"unknown table {table!r}; write full, or w16 for rows of 16 values", field="table")
