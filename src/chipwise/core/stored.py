"""Values whose fields in files differ from their own: one class for the program, a flat record for files."""

from __future__ import annotations

from typing import ClassVar, Self


class Stored:
    """A dataclass that is written as another one, ``STORED``, and read from it.

    Its identity is that of the record, so files and digests stay as they are when the class changes.
    """

    __slots__ = ()
    STORED: ClassVar[type]

    def stored(self) -> object:
        """The record of ``STORED`` that says the same."""
        raise NotImplementedError

    @classmethod
    def of_stored(cls, record: object) -> Self:
        """The value that ``record`` describes.

        Raises:
            SpecError: There is no such value; names the record's field.
        """
        raise NotImplementedError
