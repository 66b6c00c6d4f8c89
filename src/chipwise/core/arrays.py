"""Names for arrays in annotations: one for each element type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
