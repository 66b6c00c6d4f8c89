"""Draws images with ``model.onnx``: python sampler.py LABEL [SEED] writes image.npy. Needs numpy and onnxruntime.

The graph gives the velocity of an image at a time from 0 (noise) to 1 (image); its metadata say in how many steps it
was chosen to be served, and how far each step is guided towards its label. Where it draws latents, they hold
the ONNX model too that makes images of them.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def draw(model: Path, labels: list[int], *, seed: int = 0, steps: int | None = None) -> np.ndarray:
    """Images (n, channels, rows, columns) from -1 to 1, one for each label."""
    session = onnxruntime.InferenceSession(str(model))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["chipwise"])
    count, scale = steps or facts["steps"], np.float32(facts.get("guidance", 1.0))
    shape = (len(labels), *facts["image"])
    image = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    told = {"label": np.array(labels, np.int64)}
    for step in range(count):
        numbers = {"time": step / count, "step": 1 / count}
        for name in facts["told"]:
            told[name] = np.full((len(labels), 1), numbers[name], np.float32)
        velocity = session.run(["velocity"], {"image": image, **told})[0]
        if scale != 1.0:
            no_label = np.full(len(labels), facts["labels"], np.int64)
            without = session.run(["velocity"], {"image": image, **told, "label": no_label})[0]
            velocity = without + scale * (velocity - without)
        image = image + velocity / count
    inner = session.get_modelmeta().custom_metadata_map.get("decoder")
    if inner is None:
        return image
    decoder = onnxruntime.InferenceSession(base64.b64decode(inner))
    return np.asarray(decoder.run(["pixels"], {"latents": image})[0])


def main() -> None:
    """Draws one image."""
    label, seed = (int(text) for text in (*sys.argv[1:3], "0")[:2])
    np.save("image.npy", draw(Path(__file__).with_name("model.onnx"), [label], seed=seed)[0])


if __name__ == "__main__":
    main()
