"""Data set of spectrograms with transcripts: CTC training on characters, scored by the character error rate.

Label 0 is CTC's blank, which also pads shorter texts.

References:
    Graves et al. 2006, Connectionist Temporal Classification, ICML: the loss, and greedy (best path) decoding.
    Character error rate: edit distance (Levenshtein 1966) divided by the number of characters in the true text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.training.data.arrays import ALL, LabelledArrays
from chipwise.training.data.dataset import Split
from chipwise.training.data.sound.clips import stretches

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BLANK = 0
HIDDEN_TIME, HIDDEN_BANDS = 0.03, 0.15  # largest masks, as shares of all; a character lasts about 70 ms
TIMES = 2  # number of masked time intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribedSpectrograms(LabelledArrays):
    """See :class:`chipwise.training.data.arrays.LabelledArrays`; inputs are (n, bands, frames), labels (n, characters).

    ``classes`` contains the name of the blank, then the characters.
    """

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model's spectrograms or characters differ, or it has too few positions."""
        if arch.outputs != len(self.classes):
            raise InputError(f"the model has {arch.outputs} characters, the data has {len(self.classes)}")
        LabelledArrays.require_fit(self, arch)
        if not isinstance(arch.head, Ctc):
            raise InputError(f"{arch.name} does not transcribe: its head is {arch.head.name}")
        needed = max(int(least_positions(labels).max()) for _, labels in (self.train, self.validation, self.test))
        if arch.max_tokens < needed:
            raise InputError(
                f"{arch.name} has {arch.max_tokens} positions per sound, but the longest text needs {needed}: "
                "use a smaller stride, or leave longer texts out"
            )

    def changed(self, inputs: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
        """Replaces two short time intervals and one range of bands by the mean."""
        count, bands, frames = inputs.shape
        hidden_M = stretches(count, bands, HIDDEN_BANDS, random)[:, :, None]
        hidden = np.repeat(hidden_M, frames, axis=2)
        for _ in range(TIMES):
            hidden |= stretches(count, frames, HIDDEN_TIME, random)[:, None, :]
        return np.where(hidden, np.float32(0), inputs)

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """CTC loss in nats per character of the texts."""
        import torch

        inputs, labels = batch
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(inputs)
        heard = torch.full((len(labels),), logits.shape[1], dtype=torch.long)
        chances = logits.float().log_softmax(-1).transpose(0, 1)
        said = (labels != BLANK).sum(1)
        return torch.nn.functional.ctc_loss(chances, labels, heard, said.cpu(), blank=BLANK, zero_infinity=True)

    def metric(
        self, outputs: NDArray[np.floating], split: Split, rows: slice = ALL
    ) -> tuple[Float64Array, Float64Array]:
        """Edit distance between the greedily decoded and the true text, and the true text's number of characters."""
        labels = self.part(split)[1][rows]
        return edits_of(outputs, labels), (labels != BLANK).sum(1).astype(np.float64)

    def text(self, labels: Sequence[int] | NDArray[np.int64]) -> str:
        """The text that ``labels`` spell, without blanks."""
        return "".join(self.classes[label] for label in labels if label != BLANK)


def least_positions(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions (n,) that CTC needs for texts (n, L): one per character, and one between equal neighbours."""
    twice = (labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != BLANK)
    found: NDArray[np.int64] = (labels != BLANK).sum(1) + twice.sum(1)
    return found


def decoded(logits_TV: NDArray[np.floating]) -> list[int]:
    """Greedy decoding: takes the most likely label at each position, merges repetitions, and removes blanks.

    >>> import numpy as np
    >>> decoded(np.eye(3)[[1, 1, 0, 1, 2, 2]])
    [1, 1, 2]
    """
    best = logits_TV.argmax(-1)
    first = np.flatnonzero(np.diff(best, prepend=-1))
    return [int(label) for label in best[first] if label != BLANK]


def edits_of(logits_NTV: NDArray[np.floating], labels: NDArray[np.int64]) -> Float64Array:
    """Edit distance between decoded and true texts, (n,); NaN if logits are not finite."""
    found = [
        distance(decoded(logits), [label for label in text.tolist() if label != BLANK])
        if np.isfinite(logits).all()
        else np.nan
        for logits, text in zip(logits_NTV, labels, strict=True)
    ]
    return np.array(found, np.float64)


def distance(said: Sequence[object], wanted: Sequence[object]) -> int:
    """Edit distance: least number of insertions, deletions and substitutions that turn ``said`` into ``wanted``.

    >>> distance("kitten", "sitting"), distance([], "abc")
    (3, 3)
    """
    costs = list(range(len(wanted) + 1))
    for i, one in enumerate(said, 1):
        before, costs[0] = costs[0], i
        for j, other in enumerate(wanted, 1):
            before, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, before + (one != other))
    return costs[-1]
