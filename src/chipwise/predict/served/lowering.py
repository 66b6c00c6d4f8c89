"""Lowers a model to the kernels that one of its devices runs in a pass, fused as the runtime fuses them.

Sizes may be arrays, so one lowering serves all requests of a table that have the same model, plan and formats. A group
of equal layers is lowered only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from chipwise.errors import Unsupported
from chipwise.model.arch.ends import Pooler, States, Tokens
from chipwise.model.arch.trunk import Head, Stem
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.question import QuestionStem
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.collective import CollectiveOp
from chipwise.predict.served import images, ranking, sentence, sound, text, towers
from chipwise.predict.served.layers import stack
from chipwise.predict.served.setting import PlacedOp, Setting, Step

Lowered = Callable[[Setting, Step], Iterator[PlacedOp]]


@dataclass(frozen=True, slots=True)
class Ends:
    """The functions that lower what comes before the layers (``stem``) and after the layers (``ends``)."""

    stem: Lowered
    ends: Lowered
    normed: Literal["all", "last"] = "all"  # positions to which the final norm is applied


KINDS: Mapping[type[Stem], Ends] = {
    Tokens: Ends(text.stem, text.ends, normed="last"),
    ImageStem: Ends(images.stem, images.ends),
    QuestionStem: Ends(images.stem_and_projector, images.ends),
    RankingStem: Ends(ranking.stem, ranking.scores),
    SentenceStem: Ends(sentence.stem, images.ends),
    SoundStem: Ends(sound.stem, images.ends),
}
"""For each kind of model, by the class of its stem: the functions that lower what comes before and after the layers."""
OFF_SHEETS: Mapping[type[Head], str] = {
    Denoiser: "denoiser; denoisers can only be estimated on a calibrated machine (--device here), published diffusion "
    "models only by their names (chipwise estimate DiT-XL/2)"
}
"""Parts of error messages for models that cannot be lowered here, by the class of their head."""


def lower_pass(setting: Setting, step: Step) -> tuple[PlacedOp, ...]:
    """The kernels of one pass through all pipeline stages, in order, as one device of each stage runs them.

    Raises:
        Unsupported: A block cannot be lowered.
    """
    if type(setting.arch.head) in OFF_SHEETS:
        raise Unsupported(f"{setting.arch.name} is a {OFF_SHEETS[type(setting.arch.head)]}")
    return tuple(_parts(setting, step))


def _parts(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    arch = setting.arch
    for tower, read in zip(arch.towers, step.towers, strict=False):  # empty for text-only requests
        yield from _tower(towers.tower_setting(tower, setting), read)
    if arch.encoder and step.encode:
        encoding = replace(step, query_tokens=step.encoder_tokens, past_tokens=0)
        reader = replace(setting, arch=arch.encoding())
        sources = KINDS[type(reader.arch.stem)].stem(reader, encoding)
        for part in (*sources, *stack(arch.encoder, reader, encoding), *reader.norm(encoding.tokens)):
            yield part.inside("encoder")
    kind = KINDS[type(arch.stem)]
    yield from kind.stem(setting, step)
    if arch.embedding_norm:
        for part in setting.norm(step.tokens):
            yield part.inside("embedding")
    yield from text.layer_inputs(setting, step)
    yield from stack(arch.layers, setting, step, own_formats=True)
    last = kind.normed == "last" and not step.every_logit and not isinstance(arch.head, States)
    rows = step.batch if last else step.tokens
    if arch.final_norm:
        for part in setting.norm(rows):
            yield part.inside("head")
    if isinstance(arch.head, Pooler):
        yield setting.plain_matmul("pooler", step.batch, arch.d_model, arch.d_model, bias=True).inside("head")
    for part in kind.ends(setting, step):
        yield part.inside("head")
    if arch.head.writes and setting.plan.pp > 1:
        payload = setting.activation_bytes(step.tokens * arch.d_model)
        send = CollectiveOp(collective="p2p", payload_bytes=payload, devices=2, activations=setting.formats.activations)
        yield PlacedOp(place="stages.send", op=send, count=setting.plan.pp - 1)


def _tower(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of a tower's pass and of its projector."""
    for part in lower_pass(setting, step):
        yield part.inside(towers.place_of(setting.arch))
    for part in towers.project(setting, step):
        yield part.inside("projector").inside(towers.place_of(setting.arch))
