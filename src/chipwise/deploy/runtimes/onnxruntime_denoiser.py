"""Denoisers in ONNX Runtime: images from noise, in the file's number of passes. Needs only numpy and onnxruntime."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import onnxruntime as ort

from chipwise.core.arrays import AnyArray
from chipwise.deploy.runtimes import SinglePass
from chipwise.deploy.runtimes.onnx_session import Loaded, bound, load, session_options
from chipwise.errors import MeasurementError
from chipwise.model.kinds.denoiser.denoiser import NO_SHORTCUTS, UNSHIFTED, moves


def decoder_of(session: ort.InferenceSession) -> ort.InferenceSession | None:
    """The session that decodes latents, from the file of ``session``; None for pixel-space models."""
    inner = session.get_modelmeta().custom_metadata_map.get("decoder")
    if inner is None:
        return None
    content, providers = base64.b64decode(inner), ["CPUExecutionProvider"]
    return ort.InferenceSession(content, session_options(1), providers=providers)


class OnnxDenoiser(SinglePass):
    """A loaded denoiser. The harness treats its passes as a prefill, with noise as prompts.

    Args:
        path: The model file, which computes one pass.
        batch: Images at a time.
        loaded: The file's session and metadata, if it is already open.
    """

    def __init__(self, path: str | Path, *, batch: int = 1, loaded: Loaded | None = None) -> None:
        self._session, self.facts = loaded or load(path)
        if "steps" not in self.facts:
            raise MeasurementError(f"{path}: this model does not make images in steps")
        if "step" in self.facts["told"]:
            raise MeasurementError(f"{path}: {NO_SHORTCUTS}")
        self.vocab_size = 0
        solver, shift = self.facts.get("solver", "euler"), self.facts.get("shift", UNSHIFTED)
        self._moves = moves(self.facts["steps"], solver=solver, shift=shift)
        self._image = np.zeros((batch, *self.facts["image"]), np.float32)
        self._velocity, self._last = np.empty_like(self._image), np.zeros_like(self._image)
        self._time = np.zeros((batch, 1), np.float32)
        self.guidance: float = self.facts.get("guidance", 1.0)
        self._label = np.arange(batch, dtype=np.int64) % self.facts["labels"]
        given: dict[str, AnyArray] = {"image": self._image, "label": self._label, "time": self._time}
        self._binding = bound(self._session, given, {"velocity": self._velocity})
        self._decoder = decoder_of(self._session)

    def prefill(self, noise: AnyArray) -> AnyArray:
        """Images (batch, C, Y, X) from noise, with the labels of the last :meth:`draw`.

        Noise has the shape of the images, or of the latents that are decoded to images.
        """
        self._image[:] = noise
        for move in self._moves:
            self._time.fill(move.time)
            self._session.run_with_iobinding(self._binding)
            if self.guidance != 1.0:
                self._guide()
            if move.before:
                self._last *= move.before
                self._image += self._last
            np.copyto(self._last, self._velocity)
            self._velocity *= move.now
            self._image += self._velocity
        if self._decoder is None:
            return self._image
        found: AnyArray = self._decoder.run(["pixels"], {"latents": self._image})[0]
        return found

    def _guide(self) -> None:
        """Classifier-free guidance: extrapolates from velocities without a label through those with a label."""
        label, velocity = self._label.copy(), self._velocity.copy()
        self._label.fill(self.facts["labels"])
        self._session.run_with_iobinding(self._binding)
        self._label[:] = label
        velocity -= self._velocity
        velocity *= self.guidance
        self._velocity += velocity

    def draw(self, noise: AnyArray, labels: AnyArray) -> AnyArray:
        """Generates images (batch, C, Y, X) with these labels (batch,)."""
        self._label[:] = labels
        return self.prefill(noise)

    def answer(self, *inputs: AnyArray) -> AnyArray:
        """Velocities (batch, C, Y, X) of one pass, for images, times and labels."""
        images, times, labels = inputs
        given = {"image": images, "label": labels, "time": times[:, None]}
        names = [each.name for each in self._session.get_inputs()]
        found: AnyArray = self._session.run(["velocity"], {name: given[name] for name in names})[0]
        return found
