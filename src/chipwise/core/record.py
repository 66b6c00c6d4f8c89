"""Typed access to plain data from a file. Errors name the file and the field's path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, overload

from chipwise.core.fields import convert, describe
from chipwise.core.files import read_json, read_yaml
from chipwise.errors import SpecError

T = TypeVar("T")
D = TypeVar("D")
_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Record:
    """A mapping read from JSON or YAML. Iterating yields the field names; ``data`` is the mapping itself.

    >>> kit = Record.of({"name": "a", "batches": [1, 8], "host": {"cores": 4}}, file="kit.json")
    >>> kit.get("name", str), kit.sequence("batches", int), kit.record("host").get("cores", int)
    ('a', [1, 8], 4)
    """

    data: Mapping[str, object]
    file: str | None = None
    field: str = ""

    @classmethod
    def of(cls, data: object, *, file: str | None = None, field: str = "") -> Record:
        """Makes a record from the mapping ``data``.

        Raises:
            SpecError: The value is not a mapping.
        """
        if not isinstance(data, Mapping):
            raise SpecError(f"must be a mapping of fields, not {describe(data)}", file=file, field=field or None)
        return cls(data, file, field)

    @classmethod
    def read(cls, path: str | Path) -> Record:
        """The mapping in a JSON or YAML file.

        Raises:
            SpecError: The file cannot be read, is broken, or contains no mapping.
        """
        return cls.of(read_yaml(path) if Path(path).suffix in (".yaml", ".yml") else read_json(path), file=str(path))

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str, kind: type[T], default: D) -> T | D: ...
    def get(self, name: str, kind: type[T], default: object = _REQUIRED) -> object:
        """The field as a ``kind``. If the field is missing or null, ``default`` (if given) is returned.

        Raises:
            SpecError: The field is missing and there is no default, or it has another type.
        """
        value = self.data.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if name not in self.data:
            raise SpecError("this field is missing", file=self.file, field=self._path(name))
        try:
            return convert(kind, value, self._path(name))
        except SpecError as error:
            raise error.inside(file=self.file) from None

    def sequence(self, name: str, kind: type[T]) -> list[T]:
        """The field as a list of ``kind`` values; empty if it is missing or null.

        Raises:
            SpecError: The field is not a list, or an item has another type.
        """
        return [Record({path: item}, self.file).get(path, kind) for path, item in self._numbered(name)]

    def record(self, name: str) -> Record:
        """The field as a record; empty if it is missing or null.

        Raises:
            SpecError: The value is not a mapping.
        """
        value = self.data.get(name)
        return Record.of({} if value is None else value, file=self.file, field=self._path(name))

    def records(self, name: str) -> list[Record]:
        """The field as a list of records; empty if it is missing or null.

        Raises:
            SpecError: The field is not a list of mappings.
        """
        return [Record.of(item, file=self.file, field=path) for path, item in self._numbered(name)]

    def _numbered(self, name: str) -> Iterator[tuple[str, object]]:
        return ((f"{self._path(name)}[{i}]", item) for i, item in enumerate(self.get(name, list, [])))

    def _path(self, name: str) -> str:
        return f"{self.field}.{name}" if self.field else name
