"""Tables of named objects, ``name -> "module:attribute"``. Objects are loaded on use; entry points can add rows.

Nothing registers itself on import: a table is a plain mapping in the code, to which other packages can add rows
through entry points.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from chipwise.errors import UnknownName


class Table:
    """A table of objects of one kind, by name.

    Args:
        kind: The kind of object, for messages (``runtime``, ``strategy``).
        group: The entry-point group in which other packages add rows.
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
        """All names; built-in names come first."""
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
