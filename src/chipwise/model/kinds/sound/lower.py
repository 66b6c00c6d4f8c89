"""Operators of models that read sound, before and after the layers."""

from __future__ import annotations

from chipwise.model.blocks.lowering import Operators, Pass
from chipwise.model.kinds.sound.frames.lower import lower_frames
from chipwise.model.kinds.sound.hearing.lower import lower_sound
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from chipwise.model.ops.matmul import Matmul


def _frames(at: Pass) -> None:
    at.tokens = at.arch.max_tokens
    at.put("stem", lower_frames(at.arch, at.arch.stem_as(SoundStem), weights=at.head, batch=at.batch))


def _sound(at: Pass) -> None:
    at.tokens = at.arch.request_tokens
    at.put("stem", lower_sound(at.arch, at.arch.stem_as(SoundStem), weights=at.head, batch=at.batch))


def _characters(at: Pass) -> None:
    at.put_end()
    if isinstance(at.arch.head, Ctc):
        head = Matmul(m=at.rows, k=at.arch.d_model, n=at.arch.outputs, weights=at.head, bias=True)
        at.put("head", [("logits", head)])


OPERATORS = Operators(stem=_frames, head=_characters)
PUBLISHED = Operators(stem=_sound, head=_characters)
