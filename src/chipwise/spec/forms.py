"""The forms of models that chipwise builds, by what they read and make: each has weights, a graph and a module.

Where forms are treated differently stands a table by form; a new one is a row in each: weights (``spec/weights.py``),
operators (``blocks/lowering.py``), ONNX nodes (``deploy/onnx.py``), the torch module (``deploy/torch.py``), Hugging
Face folders (``deploy/hf.py``), and what is built of it (``spec/built.py``).
"""

from __future__ import annotations

from enum import StrEnum

from chipwise.spec.arch import ArchSpec
from chipwise.spec.candidates import RankingStem
from chipwise.spec.encoder import is_encoder
from chipwise.spec.image_encoders import encodes_images
from chipwise.spec.sound import SoundStem
from chipwise.spec.transcribing import transcribes


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
