"""The public errors. All are :class:`ChipwiseError`; what the caller gave wrongly is an :class:`InputError`.

>>> import chipwise
>>> try:
...     chipwise.estimate("gpt2", device="h1000")
... except chipwise.errors.UnknownName as error:
...     print(error)  # doctest: +ELLIPSIS
unknown device 'h1000'; did you mean 'h100', ...?
"""

from chipwise.core.errors import (
    AmbiguousName,
    ChipwiseError,
    DataError,
    DiskFull,
    DoesNotFit,
    Infeasible,
    InputError,
    JobsMissing,
    MeasurementError,
    MissingExtra,
    OutOfReach,
    OutputError,
    SpecError,
    StorageError,
    StudyError,
    TrainingDiverged,
    UnitError,
    UnknownName,
    Unreachable,
    Unsupported,
    WorkerError,
)

__all__ = [
    "AmbiguousName",
    "ChipwiseError",
    "DataError",
    "DiskFull",
    "DoesNotFit",
    "Infeasible",
    "InputError",
    "JobsMissing",
    "MeasurementError",
    "MissingExtra",
    "OutOfReach",
    "OutputError",
    "SpecError",
    "StorageError",
    "StudyError",
    "TrainingDiverged",
    "UnitError",
    "UnknownName",
    "Unreachable",
    "Unsupported",
    "WorkerError",
]
