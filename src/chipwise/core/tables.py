"""Tables of names, ``name -> "module:attribute"``, which are loaded on use and extended by entry points.

Nothing registers itself on import: a table is a plain mapping in the code; other packages add rows by entry points.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from chipwise.errors import UnknownName


class Table:
    """Names of one kind, each with the object to load.

    Args:
        kind: What the names denote, for messages (``runtime``, ``strategy``).
        group: Entry-point group by which other packages add rows.
        rows: The built-in rows, ``name -> "module:attribute"``.
        hidden: Rows that can be loaded but are not listed, such as test doubles.
    """

    def __init__(
        self, kind: str, group: str, rows: Mapping[str, str], *, hidden: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.group, self._rows, self._hidden = kind, group, dict(rows), dict(hidden or {})

    def __contains__(self, name: object) -> bool:
        """Whether ``name`` can be loaded."""
        return name in self._hidden or name in self.names()

    def names(self) -> list[str]:
        """All names, built-in ones first."""
        from importlib.metadata import entry_points  # slow to load, and rarely needed

        return [*self._rows, *(e.name for e in entry_points(group=self.group) if e.name not in self._rows)]

    def load(self, name: str) -> Any:
        """Loads the object called ``name``.

        Raises:
            UnknownName: No row has this name.
        """
        row = self._rows.get(name) or self._hidden.get(name)
        if row is not None:
            module, attribute = row.split(":")
            return attrgetter(attribute)(importlib.import_module(module))
        from importlib.metadata import entry_points

        for entry in entry_points(group=self.group):
            if entry.name == name:
                return entry.load()
        raise UnknownName(self.kind, name, self.names())
