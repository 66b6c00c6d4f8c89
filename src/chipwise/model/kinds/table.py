"""The kinds of models that chipwise builds, in the order in which they are tried for a model."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.sentence.form import SENTENCES
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.text.form import DECODER

KINDS: tuple[Form, ...] = (
    ENCODER,
    DECODER,
    RANKER,
    TRANSCRIBER,
    LISTENER,
    DENOISER,
    SENTENCES,
    IMAGE_ENCODER,
    CLASSIFIER,
)


def form_of(arch: ArchSpec) -> Form:
    """The kind of model that ``arch`` is, even if chipwise cannot build all of it."""
    return next(form for form in KINDS if form.matches(arch))
