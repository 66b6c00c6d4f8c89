"""Values that files store in another form: one class for the program, and a flat record class for files."""

from __future__ import annotations

from typing import ClassVar, Self


class Stored:
    """A dataclass that is written to files as another dataclass, ``STORED``, and read back from it.

    Its digest is that of the record, so files and digests stay the same when the class changes.
    """

    __slots__ = ()
    STORED: ClassVar[type]

    def stored(self) -> object:
        """This value as a ``STORED`` record."""
        raise NotImplementedError

    @classmethod
    def of_stored(cls, record: object) -> Self:
        """The value that ``record`` describes.

        Raises:
            SpecError: The record describes no valid value; the error names the record's field.
        """
        raise NotImplementedError
