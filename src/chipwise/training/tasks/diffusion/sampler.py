"""Generates images with model.onnx: ``python sampler.py LABEL [SEED]`` writes image.npy. Needs numpy and onnxruntime.

The graph computes the velocity of an image at a time from 0 (noise) to 1 (image). Its metadata contain the number of
steps, the solver and the guidance scale with which the model was selected and, for a model of latents, the decoder as
an ONNX model.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def draw(model: Path, labels: list[int], *, seed: int = 0, steps: int | None = None) -> np.ndarray:
    """Generates one image for each label: (n, channels, rows, columns), from -1 to 1."""
    session = onnxruntime.InferenceSession(str(model))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["chipwise"])
    scale = np.float32(facts.get("guidance", 1.0))
    shape = (len(labels), *facts["image"])
    image = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    told, last = {"label": np.array(labels, np.int64)}, np.zeros_like(image)
    for time, now, before in moves(steps or facts["steps"], facts.get("shift", 1.0), facts.get("solver", "euler")):
        told["time"] = np.full((len(labels), 1), time, np.float32)
        velocity = session.run(["velocity"], {"image": image, **told})[0]
        if scale != 1.0:
            no_label = np.full(len(labels), facts["labels"], np.int64)
            without = session.run(["velocity"], {"image": image, **told, "label": no_label})[0]
            velocity = without + scale * (velocity - without)
        image = image + np.float32(now) * velocity + np.float32(before) * last
        last = velocity
    inner = session.get_modelmeta().custom_metadata_map.get("decoder")
    if inner is None:
        return image
    decoder = onnxruntime.InferenceSession(base64.b64decode(inner))
    return np.asarray(decoder.run(["pixels"], {"latents": image})[0])


def moves(steps: int, shift: float, solver: str) -> list[tuple[float, float, float]]:
    """For each step: its time, the weight of its velocity, and the weight of the previous step's velocity."""
    found: list[tuple[float, float, float]] = []
    last = 0.0
    times = [i / (i + shift * (steps - i)) for i in range(steps + 1)]
    for time, end in itertools.pairwise(times):
        size = end - time
        ahead = size / last / 2 if last and solver == "multistep" else 0.0
        found.append((time, size * (1 + ahead), -size * ahead))
        last = size
    return found


def main() -> None:
    """Generates one image for the arguments of the command line, and writes it."""
    label, seed = (int(text) for text in (*sys.argv[1:3], "0")[:2])
    np.save("image.npy", draw(Path(__file__).with_name("model.onnx"), [label], seed=seed)[0])


if __name__ == "__main__":
    main()
