"""Type aliases of arrays, one for each element type."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Number = TypeVar("Number", float, Float64Array)
"""Type variable of functions that take and return either a number or an array."""
Count = TypeVar("Count", int, NDArray[np.int64])
"""Type variable for either a whole number or an array of them."""
