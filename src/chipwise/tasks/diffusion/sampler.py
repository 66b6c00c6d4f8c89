"""Draws images with ``model.onnx``: python sampler.py LABEL [SEED] writes image.npy. Needs numpy and onnxruntime.

The graph gives the velocity of an image at a time from 0 (noise) to 1 (image); its metadata say in how many steps it
was chosen to be served.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def draw(model: Path, labels: list[int], *, seed: int = 0, steps: int | None = None) -> np.ndarray:
    """Images (n, channels, rows, columns) from -1 to 1, one for each label."""
    session = onnxruntime.InferenceSession(str(model))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["chipwise"])
    count = steps or facts["steps"]
    shape = (len(labels), *facts["image"])
    image = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    told = {"label": np.array(labels, np.int64)}
    for step in range(count):
        numbers = {"time": step / count, "step": 1 / count}
        for name in facts["told"]:
            told[name] = np.full((len(labels), 1), numbers[name], np.float32)
        image = image + session.run(["velocity"], {"image": image, **told})[0] / count
    return image


def main() -> None:
    """Draws one image."""
    label, seed = (int(text) for text in (*sys.argv[1:3], "0")[:2])
    np.save("image.npy", draw(Path(__file__).with_name("model.onnx"), [label], seed=seed)[0])


if __name__ == "__main__":
    main()
