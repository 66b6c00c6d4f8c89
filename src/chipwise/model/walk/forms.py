"""The forms of models that chipwise builds, by what they read and make: each has weights, a graph and a module.

Where forms are treated differently stands a table by form; a new one is a row in each: weights
(``model/walk/weights.py``),
operators (``model/walk/lower.py``), ONNX nodes (``deploy/export/onnx.py``), the torch module
(``model/kinds/text/module.py``), Hugging
Face folders (``deploy/export/hf.py``), and what is built of it (``model/walk/built.py``).
"""

from __future__ import annotations

from enum import StrEnum

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.encoder.form import is_encoder
from chipwise.model.kinds.image.published import encodes_images
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sound.form import transcribes
from chipwise.model.kinds.sound.stem import SoundStem


class Form(StrEnum):
    """What a model reads and makes."""

    DECODER = "decoder"  # tokens, and the next one
    ENCODER = "encoder"  # tokens, and vectors of them
    CLASSIFIER = "classifier"  # an image or a spectrogram, perhaps with a question, and a class
    IMAGE_ENCODER = "image encoder"  # an image, and vectors of it
    DENOISER = "denoiser"  # an image with noise, and the way to one without
    TRANSCRIBER = "transcriber"  # a spectrogram, and characters
    LISTENER = "listener"  # sound, and states or characters, as published models do
    RANKER = "ranker"  # a history and candidates, and their scores


def form_of(arch: ArchSpec) -> Form:
    """The form of ``arch``, whether all of it is built or not; what is like no other form counts as a decoder."""
    if is_encoder(arch):
        return Form.ENCODER
    if arch.stem is None:
        return Form.DECODER
    if isinstance(arch.stem, RankingStem):
        return Form.RANKER
    if isinstance(arch.stem, SoundStem):
        return Form.TRANSCRIBER if transcribes(arch) else Form.LISTENER
    if arch.denoiser is not None:
        return Form.DENOISER
    return Form.IMAGE_ENCODER if encodes_images(arch) else Form.CLASSIFIER
