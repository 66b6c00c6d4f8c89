"""Objects that have two forms: the class that the program uses, and a flat record that is written to files."""

from __future__ import annotations

from typing import ClassVar, Self


class Stored:
    """Base for dataclasses that files store as another dataclass, ``STORED``, which can be converted back.

    The digest is that of the record, so files and digests stay the same if the program's class changes.
    """

    __slots__ = ()
    STORED: ClassVar[type]

    def stored(self) -> object:
        """This value as a ``STORED`` record."""
        raise NotImplementedError

    @classmethod
    def of_stored(cls, record: object) -> Self:
        """The value that a record describes.

        Raises:
            SpecError: The record describes no valid value; the error names the record's field.
        """
        raise NotImplementedError
