"""What chipwise can do itself with a model of any kind: export it, and train it on which data. Estimates know more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.denoiser.form import is_denoiser, require_denoiser
from chipwise.model.kinds.encoder.form import require_encoder
from chipwise.model.kinds.image.form import is_classifier, require_classifier
from chipwise.model.kinds.image.published import require_image_encoder
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.ranking.form import is_ranker, require_ranker
from chipwise.model.kinds.sound.form import is_transcriber, require_transcriber
from chipwise.model.kinds.sound.published import require_listener
from chipwise.model.kinds.text.form import is_plain, require_plain
from chipwise.model.walk.forms import Form, form_of


def require_built(arch: ArchSpec, *, work: str) -> None:
    """Checks that chipwise exports ``arch`` itself, whatever it reads.

    Args:
        arch: The model.
        work: What was requested, for the error message ("measured").

    Raises:
        Unsupported: It does not; one sentence that names what is missing, and what works instead.
    """
    if arch.encoder:
        raise Unsupported(
            f"{arch.name} cannot be {work}: a decoder that attends to an encoder is not built; chipwise estimate "
            "prices it all the same"
        )
    _REQUIRED[form_of(arch)](arch, work=work)


_REQUIRED: Mapping[Form, Callable[..., object]] = {
    Form.DECODER: require_plain,
    Form.ENCODER: require_encoder,
    Form.CLASSIFIER: require_classifier,
    Form.IMAGE_ENCODER: require_image_encoder,
    Form.DENOISER: require_denoiser,
    Form.TRANSCRIBER: require_transcriber,
    Form.LISTENER: require_listener,
    Form.RANKER: require_ranker,
}


def task_of(arch: ArchSpec) -> str | None:
    """The task of a run file whose data trains such a model; None where chipwise trains none like it."""
    if is_classifier(arch):
        if arch.question is not None:
            return "multimodal"
        return "vision" if isinstance(arch.stem, ImageStem) and arch.stem.axes == 2 else "speech"
    for trained, task in ((is_transcriber, "transcripts"), (is_ranker, "ranking"), (is_denoiser, "diffusion")):
        if trained(arch):
            return task
    return "text" if is_plain(arch) else None


def require_trained(arch: ArchSpec, *, task: str) -> None:
    """Checks that chipwise trains models like ``arch``, and on data of ``task``.

    Raises:
        InputError: On data of another task.
        Unsupported: It trains none; one sentence that says why, and what works instead.
    """
    fitting = task_of(arch)
    if fitting == task or (fitting == "text" and task == "series") or (fitting in _IMAGES and task in _IMAGES):
        return
    if fitting is not None:
        if fitting == "text":
            raise InputError(f"{arch.name} reads text: name text files, or a run file of text, with --data")
        raise InputError(
            f"{arch.name} {_reads(arch)}: name a run file of the task {fitting} with --data {fitting}.yaml (chipwise "
            f"init {fitting} writes one)"
        )
    raise Unsupported(f"{arch.name} cannot be trained: {_untrained(arch)}; {_instead(arch)}")


_IMAGES = ("vision", "speech")  # whose models differ in sizes alone, which the task itself compares


_DOES = {
    Form.RANKER: "ranks candidates",
    Form.TRANSCRIBER: "transcribes sound",
    Form.LISTENER: "transcribes sound",
    Form.DENOISER: "draws images",
}
_ALONE = {
    Form.TRANSCRIBER: "published models that hear are exported and measured alone",
    Form.LISTENER: "published models that hear are exported and measured alone",
    Form.IMAGE_ENCODER: "published encoders of images are exported and measured alone",
    Form.ENCODER: "encoders of text are exported, measured, cut and healed alone",
}


def _reads(arch: ArchSpec) -> str:
    """What it reads, and makes of it."""
    if form_of(arch) in _DOES:
        return _DOES[form_of(arch)]
    assert isinstance(arch.stem, ImageStem)  # what is left but text
    size = " x ".join(str(arch.stem.image_size) for _ in range(arch.stem.axes))
    kind = "images" if arch.stem.axes == 2 else "spectrograms"
    if arch.question is not None:
        return f"answers questions about images of {size}"
    return f"tells {arch.classes:,} classes of {kind} of {size} apart, in {arch.stem.channels} channels"


def _untrained(arch: ArchSpec) -> str:
    """Why nothing like it is trained."""
    if arch.towers:
        return "a tower and a decoder are not trained together"
    if arch.encoder:
        return "a decoder that attends to an encoder is not built"
    if form_of(arch) in _ALONE:
        return _ALONE[form_of(arch)]
    try:
        require_built(arch, work="trained")
    except Unsupported as error:
        return str(error).partition(" cannot be trained: ")[2].rpartition("; ")[0]
    return "there is no task for it"


def _instead(arch: ArchSpec) -> str:
    """The commands that do work."""
    try:
        require_built(arch, work="measured")
    except Unsupported:
        return "chipwise estimate prices it all the same"
    return "chipwise measure times it, and chipwise estimate prices it"
