"""Text for pruning language models.

Pruned encoders are compared with the original by hidden states, pruned decoders by next-token distributions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.hf import load_pretrained, require_folder, save_pretrained
from chipwise.design.shrink.forward import Weights
from chipwise.design.shrink.material import OnPart, mean_distance
from chipwise.design.shrink.texts import BATCH_TOKENS, Targets, Texts, encode, make_targets
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Pooler
from chipwise.model.kinds.encoder.form import without_head
from chipwise.model.nn.precision import Precision
from chipwise.training.data.text import Corpus

CALIBRATION_TEXTS, VALIDATION_BATCHES = 256, 4
_SCORING, _LEAST_TOKENS = 10**11, 256  # batches that score blocks: parameters times tokens, and the least tokens
_MOST_TOKENS = 800_000  # most tokens of text; their hidden states take 2 bytes per value on disk


class TextMaterial:
    """A :class:`chipwise.design.shrink.material.Material` whose data is text, encoded by the model's own tokenizer.

    Args:
        source: The original's folder, which contains a tokenizer.json.
        corpus: The text, split into training, validation and test text.
        longest: Largest number of tokens per text.

    Raises:
        InputError: The model cannot be pruned, or there are too few texts.
    """

    held_out = "distance from the original, held-out text"

    def __init__(self, source: Path, corpus: Corpus, *, longest: int) -> None:
        require_folder(source)
        arch, arrays = load_pretrained(source)
        self.arch = without_head(arch) if isinstance(arch.head, Pooler) else arch
        self.weights = {
            name: torch.from_numpy(value) for name, value in arrays.items() if not name.startswith("pooler.")
        }
        self.tokenizer = source / "tokenizer.json"
        longest = min(longest, self.arch.max_tokens)
        texts = encode(self.tokenizer, corpus.train, longest=longest)
        self.texts = {
            "train": texts.first(int((texts.starts[1:] <= _MOST_TOKENS).sum())),
            "validation": encode(self.tokenizer, corpus.validation, longest=longest),
        }
        self.about = {"text": corpus.digest, "longest": longest}
        self._held: Targets | None = None

    @property
    def examples(self) -> Texts:
        """The first texts."""
        return self.texts["train"].first(CALIBRATION_TEXTS)

    def comparison(self, weights: Weights, state: Path, *, precision: Precision, on_part: OnPart) -> Targets:
        """The original's hidden states on the training text."""
        return make_targets(
            self.arch,
            weights,
            self.texts["train"],
            state / "targets-train.npy",
            precision=precision,
            scoring_tokens=min(BATCH_TOKENS, max(_LEAST_TOKENS, _SCORING // self.arch.parameters())),
            on_progress=on_part,
        )

    def judge(self, arch: ArchSpec, weights: Weights, original: Weights, state: Path, *, precision: Precision) -> float:
        """A pruned model's mean distance from the original on validation text."""
        if self._held is None:
            path = state / "targets-validation.npy"
            self._held = make_targets(self.arch, original, self.texts["validation"], path, precision=precision)
        return mean_distance(self._held, arch, weights, VALIDATION_BATCHES)

    def write(self, design: Design, weights: Mapping[str, AnyArray], folder: Path) -> None:
        """Writes a Hugging Face folder that includes the original's tokenizer."""
        save_pretrained(design.arch, weights, self.tokenizer, folder)
