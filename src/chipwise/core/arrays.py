"""Names for arrays in annotations: one for each element type."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Number = TypeVar("Number", float, Float64Array)
"""One number, or an array of them, in arguments and result alike."""
Count = TypeVar("Count", int, NDArray[np.int64])
"""The same of whole numbers."""
