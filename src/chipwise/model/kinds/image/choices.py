"""The search choices that only image models have: patches, stem, pooling, denoising steps and others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from chipwise.core.fields import check_fields, later, positive
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.rates import FRAMES_PER_S
from chipwise.model.kinds.choices import Choices, Chosen, Implied, Norm, Parts, Whole, bidirectional, other_sizes
from chipwise.model.kinds.denoiser.denoiser import (
    MOST_GUIDANCE,
    MOST_SHIFT,
    NO_SHORTCUTS,
    UNGUIDED,
    UNSHIFTED,
    Denoiser,
    Solver,
)
from chipwise.model.kinds.denoiser.latents.spec import FACTORS, Latents
from chipwise.model.kinds.image.distances.spec import bias_rows
from chipwise.model.kinds.image.stem import CONV_STRIDE, ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem, image_of

IMAGE_CHOICES = ("patch", "stem", "pooling")
POSITION_CHOICES = ("positions",)  # a choice if positions other than learned ones are listed
DENOISER_CHOICES = ("steps", "training")  # choices if steps are listed
SOLVER, SHIFT = "solver", "shift"  # choices if values other than ``euler`` and 1 are listed
LATENTS, PIXELS = "latents", 1  # a choice if anything but pixels is listed
GUIDANCE = "guidance"  # a choice if anything but 1 is listed
FREQUENCIES = 64  # size of time embeddings; DiT's 256 are for models ten times as wide
QUESTION_CHOICES = ("merge",)  # choices of models that answer questions
IMAGE_IN = "image_in"  # a choice if anything but the prefix is listed
PATCHES, EVERYWHERE = "patches", "none"
LEARNED, RELATIVE = "learned", "relative"
NO_MERGE, MEAN, JOIN = "none", "mean", "join"
PREFIX, CROSS = "prefix", "cross"
_DENOISERS_ALONE = {  # fields, with their values in models other than denoisers
    "training": ("flow",),
    "latents": (PIXELS,),
    "guidance": (UNGUIDED,),
    "solver": ("euler",),
    "shift": (UNSHIFTED,),
}
_STEM = re.compile(r"conv\d+(-\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpace(Choices):
    """The input images, and the search choices that only image models have. Each field lists the options.

    ``stem`` is ``patches``, or ``conv16`` or ``conv8-16``: convolutions with these numbers of output channels before
    the patches. Each convolution halves the image's sides. ``pooling`` is a class token (``first``) or the mean of all
    positions. ``positions`` are ``learned`` embeddings, added to the patches, or ``relative``: a learned bias per head
    for each position of one patch relative to another. The sizes determine which values can be combined; a forbidden
    value is replaced with the nearest allowed one. ``square`` must be ``none``: windows such as ``7x7``, which older
    files may have, are rejected.

    With ``steps`` the models are denoisers. ``training`` must be ``flow``: ``shortcut``, which older files may have, is
    rejected. ``solver`` is ``euler``, or ``multistep``, which also uses the previous step's velocity, without extra
    passes. A ``shift`` above 1 makes the first steps smaller and the last steps larger. ``guidance`` is the scale of
    classifier-free guidance, which takes two passes per step; 1 means no guidance. ``latents`` is the number of pixels
    that a latent covers on each side: 2 or 4 (the run then trains an autoencoder), or 1 (models generate pixels).
    With 2 or 4, ``patch`` counts latents instead of pixels.

    ``question`` is the number of words per question. If it is above 0, the models answer questions about images, and
    the classes are the answers. ``merge`` combines four patches into one token: their ``mean``, or their concatenated
    values (``join``). ``image_in`` states how the words attend to the image's tokens: as a ``prefix`` before the words
    in one sequence, or by cross-attention in every layer (``cross``), so that only words pass through the layers.
    """

    noun: ClassVar[str] = "images"
    models: ClassVar[str] = "image classifiers"
    calibration: ClassVar[str] = ImageStem.calibration

    size: int  # pixels on each side; images are scaled to it
    classes: int
    channels: int = 1
    patch: tuple[int, ...]
    stem: tuple[str, ...] = (PATCHES,)
    pooling: tuple[Literal["first", "mean", "last"], ...] = ("first",)
    square: tuple[str, ...] = (EVERYWHERE,)
    steps: tuple[int, ...] = later(())  # denoising steps per image; if empty, images are classified
    training: tuple[Literal["flow", "shortcut"], ...] = later(("flow",))  # for denoisers; see the class docstring
    guidance: tuple[float, ...] = later((UNGUIDED,))  # for denoisers; see the class docstring
    latents: tuple[int, ...] = later((PIXELS,))  # for denoisers; see the class docstring
    solver: tuple[Solver, ...] = later(("euler",))  # for denoisers; see the class docstring
    shift: tuple[float, ...] = later((UNSHIFTED,))  # for denoisers; see the class docstring
    question: int = later(0)  # positions of a question after the image; 0: no questions
    words: int = later(0)  # vocabulary size of questions
    merge: tuple[Literal["none", "mean", "join"], ...] = later((NO_MERGE,))  # how four patches become one token
    image_in: tuple[Literal["prefix", "cross"], ...] = later((PREFIX,))  # for questions; see the class docstring
    positions: tuple[Literal["learned", "relative"], ...] = later((LEARNED,))
    axes: int = later(2)  # 1: signals of ``size`` frames of 10 ms with ``channels`` bands, cut into slices

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "size", "classes", "channels", most=65_536)
        for patch in self.patch:
            if patch < 1 or self.size % patch:
                raise SpecError(f"patches of {patch} pixels do not divide images of {self.size}", field="patch")
        for factor in self.latents:
            if factor not in (PIXELS, *FACTORS) or self.size % factor:
                raise SpecError(
                    f"must be 1, 2 or 4 pixels and divide the image's {self.size} pixels, not {factor}", field="latents"
                )
            if factor > PIXELS and not any(self.size // factor % patch == 0 for patch in self.patch):
                raise SpecError(
                    f"no patch size divides the {self.size // factor} latents on each side of an image", field="latents"
                )
        for stem in self.stem:
            if stem != PATCHES and not _STEM.fullmatch(stem):
                raise SpecError(f"unknown stem {stem!r}; write patches, conv16 or conv8-16", field="stem")
        if self.axes not in (1, 2):
            raise SpecError(f"must be 2 (images) or 1 (signals in time), not {self.axes}", field="axes")
        if self.square != (EVERYWHERE,):
            text = "attention within windows of patches is no longer part of searches; leave it out"
            raise SpecError(text, field="square")
        if self.question:
            self._check_questions()
        elif self.words or self.merge != (NO_MERGE,) or self.image_in != (PREFIX,) or "last" in self.pooling:
            text = "`words`, `merge`, `image_in` and `pooling: last` need a question length; set it here"
            raise SpecError(text, field="question")
        if self.steps:
            self._check_denoisers()
        else:
            for name, only in _DENOISERS_ALONE.items():
                if getattr(self, name) != only:
                    raise SpecError("only valid for denoisers, which need `steps`", field=name)

    def _check_questions(self) -> None:
        positive(self, "question", most=4096)
        if not 2 < self.words <= 1_000_000:
            raise SpecError(f"must be from 3 to 1,000,000, not {self.words}", field="words")
        if self.axes != 2 or self.steps or self.positions != (LEARNED,):
            raise SpecError("needs images (axes: 2), learned positions and no steps", field="question")
        object.__setattr__(self, "pooling", ("last",))  # the answer is predicted from the last word's state

    def _check_denoisers(self) -> None:
        if self.stem != (PATCHES,) or self.axes != 2:
            raise SpecError("a denoiser always reads patches of an image; leave stem out", field="stem")
        if self.positions != (LEARNED,):
            raise SpecError("a denoiser always has learned positions; leave positions out", field="positions")
        object.__setattr__(self, "pooling", ("mean",))  # nothing is pooled, and there is no class token
        if any(steps < 1 for steps in self.steps):
            raise SpecError(f"must be at least 1, not {min(self.steps)}", field="steps")
        if any(not UNGUIDED <= scale <= MOST_GUIDANCE for scale in self.guidance):
            raise SpecError(f"must be from 1 (no guidance) to {MOST_GUIDANCE:g}", field="guidance")
        if "shortcut" in self.training:
            raise SpecError(NO_SHORTCUTS, field="training")
        if any(not 1 / MOST_SHIFT <= shift <= MOST_SHIFT for shift in self.shift):
            raise SpecError(f"must be from {1 / MOST_SHIFT:g} to {MOST_SHIFT:g}; 1 means no shift", field="shift")

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of the choices for the whole model (not for a layer) that only image models have."""
        questions = QUESTION_CHOICES if self.question else ()
        image_in = () if self.image_in == (PREFIX,) else (IMAGE_IN,)
        positions = () if self.positions == (LEARNED,) else POSITION_CHOICES
        denoisers = DENOISER_CHOICES if self.steps else ()
        sampler = (name for name in (SOLVER, SHIFT, LATENTS, GUIDANCE) if getattr(self, name) != _DENOISERS_ALONE[name])
        return (*IMAGE_CHOICES, *positions, *denoisers, *sampler, *questions, *image_in)

    @property
    def frames(self) -> int | None:
        """Number of images in a request: 1, or None for signals and for denoisers."""
        return 1 if self.seconds is None and not self.steps else None

    @property
    def seconds(self) -> float | None:
        """Length of a signal in seconds (its frames are 10 ms apart); None for images."""
        return self.size / FRAMES_PER_S if self.axes == 1 else None

    @property
    def outputs(self) -> int:
        """Number of rows in the head's matrix."""
        return self.classes

    @property
    def off_sheets(self) -> str:
        """A phrase naming denoisers, whose costs cannot be predicted from data sheets; empty for other models."""
        return "models that generate images in steps" if self.steps else ""

    def unfit_norm(self, norm: Norm) -> str:
        """An error message if these models cannot have ``norm``; else empty."""
        return "denoisers need LayerNorm; write norm: layernorm" if self.steps and norm != "layernorm" else ""

    def _wide_enough(self, widths: tuple[int, ...]) -> Implied:
        """Conditions that make a denoiser's width at least the number of values in a patch.

        A narrower model cannot represent all of a patch's noise, so it cannot separate noise and image. It is an error
        if all listed widths are too small for a patch size. If ``latents`` lists a value other than 1, a patch size
        that is too large for all widths is excluded instead. It is then an error only if no patch size remains for some
        value of ``latents``.

        Raises:
            SpecError: All listed widths are too small for a patch size, or no patch size is left.
        """
        for factor in self.latents if self.steps else ():
            whose = {} if self.latents == (PIXELS,) else {LATENTS: [factor]}
            fitting = []
            for patch in (patch for patch in self.patch if self.size // factor % patch == 0):
                values = patch**self.axes * self.channels * factor
                wide = [width for width in widths if width >= values]
                if not wide and not whose:
                    text = f"must be at least {values}, the number of values in a patch of size {patch}; list such a"
                    raise SpecError(f"{text} width or leave the patch size out", field="d_model")
                fitting += [patch] if wide else []
                if wide and len(wide) < len(widths):
                    yield {"patch": [patch], **whose}, {"d_model": wide}
            if not fitting:
                text = f"must be at least the number of values in a patch (latents: {factor}); list a larger width"
                raise SpecError(text, field="d_model")
            if whose and len(fitting) < len(self.patch):
                yield whose, {"patch": fitting}

    def conditions(self, widths: tuple[int, ...]) -> Implied:
        """Conditions that follow from the input sizes and the listed widths."""
        for patch in self.patch:
            stems = [stem for stem in self.stem if self._halves(patch, len(convs_of(stem)))]
            if len(stems) < len(self.stem):
                yield {"patch": [patch]}, {"stem": stems}
            grid = self.size // patch
            if grid % 2 and self.merge not in ((NO_MERGE,), ()):
                yield {"patch": [patch]}, {"merge": [kind for kind in self.merge if kind == NO_MERGE]}
        for name, only in ((SOLVER, "euler"), (SHIFT, UNSHIFTED)):
            if 1 in self.steps and name in self.choices and only in getattr(self, name):
                yield {"steps": [1]}, {name: [only]}  # with one step all values are equivalent
        yield from self._wide_enough(widths)

    def attention(self, heads: tuple[int | str, ...], kv_heads: tuple[int, ...]) -> tuple[Parts, ...]:
        """Tuples (heads, KV heads, ``none``), with as many KV heads as heads.

        Older runs stored ``none`` for attention without windows.
        """
        return tuple((each, each, EVERYWHERE) for each in heads)

    def completed(self, layer: Chosen) -> dict[str, Any]:
        """The choices of a layer, with ``square``, which earlier runs stored."""
        return {"square": EVERYWHERE, **layer}

    def parts(self, layer: Chosen) -> Parts:
        """The tuple for the choices in ``layer``, in the form that :meth:`attention` returns."""
        return layer["heads"], layer["kv_heads"], layer.get("square", EVERYWHERE)

    def layer(self, chosen: Chosen, parts: Parts, *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with biases as in ViT, and with position biases and cross-attention if ``chosen`` has them."""
        learned = chosen.get("positions", LEARNED) == LEARNED
        biases = 0 if learned else bias_rows(self.stem_of(chosen))
        layer = bidirectional(parts, head_size=head_size, ffn=ffn, relative_buckets=biases)
        return replace(layer, cross=layer.attention if self.crosses(chosen) else None)

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """Builds the classifier or denoiser from ``layers`` and from the stem and head that ``chosen`` describes."""
        stem = self.stem_of(chosen)
        denoiser = denoiser_of(chosen, self)
        if denoiser is not None:
            norms = {"norm": "layernorm", "norm_weight": False, "norm_eps": 1e-6}
            model = whole.around(layers)
            return model(stem=stem, head=denoiser, max_tokens=stem.tokens, positions="learned", **norms)
        read = self.asked(chosen, whole.d_model) if self.question else stem
        positions = "learned" if chosen.get("positions", LEARNED) == LEARNED else "none"
        head = Classes(count=self.classes, pooling="last" if self.question else chosen["pooling"])
        model = whole.around(layers, bias=True)
        return model(stem=read, head=head, max_tokens=read.request_tokens, positions=positions)

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """An error message if ``arch`` cannot read the images of ``run``; else empty."""
        if arch.reads != "image":
            return f"{arch.name} does not read images or spectrograms, but {run} has such data"
        stem = image_of(arch.stem)
        wanted = {"size": self.size, "channels": self.channels, "classes": self.classes, "axes": self.axes}
        got = {"size": stem.image_size, "channels": stem.channels, "classes": arch.outputs, "axes": stem.axes}
        return other_sizes(arch, run=run, got=got, wanted=wanted)

    def _halves(self, patch: int, times: int) -> bool:
        """Whether patch size and image size can both be halved ``times`` times without a remainder."""
        each = int(CONV_STRIDE**times)
        return patch % each == 0 and self.size % each == 0

    def stem_of(self, choices: Chosen) -> ImageStem:
        """The image stem that ``choices`` describe."""
        factor = choices.get(LATENTS, PIXELS)
        return ImageStem(
            image_size=self.size // factor,
            patch=choices["patch"],
            channels=self.channels * factor,
            convs=convs_of(choices["stem"]),
            bias=not self.question,  # the projector after it has biases
            prefix_tokens=int(choices["pooling"] == "first"),
            axes=self.axes,
        )

    def asked(self, choices: Chosen, d_model: int) -> QuestionStem:
        """The stem of a model that answers questions about this space's images."""
        merge = choices.get("merge", NO_MERGE)
        projector = Projector(widths=(d_model, d_model), pool=2 if merge == MEAN else 1, join=2 if merge == JOIN else 1)
        question = Question(words=self.words, tokens=self.question)
        return QuestionStem(image=self.stem_of(choices), question=question, projector=projector)

    def crosses(self, choices: Chosen) -> bool:
        """Whether a question's words attend to the image by cross-attention."""
        return bool(choices.get(IMAGE_IN, PREFIX) == CROSS)

    def request_tokens(self, chosen: Chosen) -> int:
        """Number of positions per request that pass through the layers."""
        if self.crosses(chosen):
            return self.question
        if self.question:
            return self.asked(chosen, 1).tokens
        return self.stem_of(chosen).tokens


def denoiser_of(choices: Chosen, image: ImageSpace) -> Denoiser | None:
    """The denoiser head that ``choices`` describe; None if the models classify images."""
    if not image.steps:
        return None
    steps = choices.get("steps", 1)  # 1 while the cost of single blocks is predicted, which does not depend on steps
    guidance, factor = choices.get(GUIDANCE, UNGUIDED), choices.get(LATENTS, PIXELS)
    latents = None if factor == PIXELS else Latents(factor=factor, channels=image.channels)
    return Denoiser(
        labels=image.classes,
        frequencies=FREQUENCIES,
        steps=steps,
        guidance=guidance,
        latents=latents,
        solver=choices.get(SOLVER, "euler"),
        shift=choices.get(SHIFT, UNSHIFTED),
    )


def convs_of(stem: str) -> tuple[int, ...]:
    """Output channels of a stem's convolutions, from its name in a run file.

    >>> convs_of("conv8-16"), convs_of("patches")
    ((8, 16), ())
    """
    return () if stem == PATCHES else tuple(map(int, stem.removeprefix("conv").split("-")))
