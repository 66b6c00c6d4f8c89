"""Spectrograms as a data set: what a training batch changes, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.tasks.speech.dataset import LabelledSpectrograms


def saved(path: Path, *, bands: int = 20, frames: int = 100) -> Path:
    part = (np.ones((4, bands, frames), np.float16), np.array([0, 1, 0, 1]))
    held = {"mean": np.zeros((bands, 1), np.float32), "std": np.ones((bands, 1), np.float32)}
    LabelledArrays(train=part, validation=part, test=part, classes=("no", "yes"), **held).save(path)
    return path


def model(*, bands: int = 20, frames: int = 100, classes: int = 2) -> ArchSpec:
    stem = ImageStem(image_size=frames, patch=10, channels=bands, axes=1)
    attention = Attention(heads=1, kv_heads=1, head_size=8, rope=False, causal=False)
    return ArchSpec(
        stem=stem,
        head=Classes(count=classes),
        d_model=8,
        layers=(Layer(attention=attention, ffn=None),),
        max_tokens=stem.tokens,
        norm="layernorm",
        positions="learned",
    )


def test_other_spectrograms_and_other_words_are_refused(tmp_path: Path) -> None:
    data = LabelledSpectrograms.load(saved(tmp_path / "x.npz"))
    data.require_fit(model())
    with pytest.raises(InputError, match="3 classes"):
        data.require_fit(model(classes=3))
    with pytest.raises(InputError, match=r"\(20, 50\)"):
        data.require_fit(model(frames=50))


def test_a_shift_moves_all_bands_and_hides_whole_bands_and_stretches(tmp_path: Path) -> None:
    """Frames are numbered from 1: what is not hidden differs by one number, at most 10; 0 is what is hidden."""
    data = LabelledSpectrograms.load(saved(tmp_path / "x.npz"))
    clips = np.broadcast_to(np.arange(1, 101, dtype=np.float32), (64, 20, 100)).copy()
    found = data.changed(clips, np.random.default_rng(0))
    moved = set()
    for clip in found:
        hidden = clip == 0
        bands, frames = hidden.all(1), hidden.all(0)
        assert bands.sum() <= 3  # 15 % of 20
        assert frames.sum() <= 20
        assert (hidden == (bands[:, None] | frames)).all()
        offsets = {float(v) for v in (clip - np.arange(1, 101))[:, 10:90][~hidden[:, 10:90]]}
        assert len(offsets) == 1
        moved |= offsets
    assert min(moved) == -10
    assert max(moved) == 10
