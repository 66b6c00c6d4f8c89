"""An exported classifier at work: the graph that would be served, one input at a time as it serves them."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.files import storage
from chipwise.deploy.export.onnx import export
from chipwise.errors import MeasurementError
from chipwise.training.data.arrays import LabelledArrays, errors_of
from chipwise.training.data.dataset import Split
from chipwise.training.tasks.protocol import Exported


def logits_of(item: Exported, arrays: LabelledArrays, split: Split) -> tuple[NDArray[np.float32], float]:
    """Logits (n, classes) of a part of the data by the exported graph, and the median seconds of a pass."""
    from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier

    path = item.folder / "judged.onnx"
    with storage(path):
        export(item.design, item.weights, path)
    try:
        session = OnnxClassifier(path)
        found, seconds = [], []
        for one in arrays.part(split)[0]:
            start = time.perf_counter()
            found.append(session.prefill(one[None])[0].copy())
            seconds.append(time.perf_counter() - start)
        return np.stack(found), float(np.median(seconds))
    finally:
        path.unlink(missing_ok=True)


def errors_in(item: Exported, arrays: LabelledArrays, split: Split) -> Float64Array:
    """1 for each input that the exported graph gets wrong, else 0, (n,).

    Raises:
        MeasurementError: Its logits are not finite.
    """
    values = errors_of(logits_of(item, arrays, split)[0], arrays.part(split)[1])
    if not np.isfinite(values).all():
        raise MeasurementError(f"{item.folder}: the exported model's logits are not finite")
    return values


def confusion(labels: NDArray[np.int64], said: NDArray[np.int64], classes: int) -> list[list[int]]:
    """Counts by label (rows) and answer (columns)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, said), 1)
    return counts.tolist()
