"""Convolutions over frames in torch. Axes: B batch, M bands, T frames, C channels, K taps, D model width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.nn.precision import compute_format


class Frames(nn.Module):
    """Turns a spectrogram into the inputs of the first layer, before positions are added.

    Each convolution is computed as a matrix (D, K · C) times K concatenated neighbouring frames, the earliest first.
    The result equals that of ``torch.nn.Conv1d`` with the matrix rearranged to (D, C, K). Unlike a
    convolution, a matrix can be quantised.
    """

    def __init__(self, stem: SoundStem, d_model: int) -> None:
        super().__init__()
        self.convs = stem.convs
        self.frames = nn.ModuleList(nn.Linear(into, out) for into, out in stem.matrices(d_model))

    def forward(self, sound_BMT: Tensor) -> Tensor:
        """The first layer's input (B, T', D), before positions are added."""
        x = compute_format(sound_BMT).transpose(1, 2)
        for conv, matrix in zip(self.convs, self.frames, strict=True):
            seen_BTCK = F.pad(x, (0, 0, conv.pad, conv.pad)).unfold(1, conv.kernel, conv.stride)
            x = F.gelu(matrix(seen_BTCK.transpose(2, 3).flatten(2)))
        return x
