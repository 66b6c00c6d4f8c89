"""Text with its tokens in the folder of a run: trainings read windows, exported graphs are judged entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.deploy.export.gguf import export_if_possible
from chipwise.deploy.export.hf import save_pretrained
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.text.exported import continued, exported_bits

QUICK_BYTES = 100_000  # short trainings are judged on the first part of the validation text
CONTINUATIONS, PROMPT_WORDS = 10, 8


class TextData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        store: Tokenised text by vocabulary size.
    """

    recipe: Mapping[str, Any] = {}
    quick = QUICK_BYTES

    def __init__(self, store: TokenStore) -> None:
        self.store = store

    def prepare(self) -> None:
        """Trains the largest tokenizer, cuts the smaller ones from it, and encodes the text with each."""
        self.store.prepare()

    def summary(self) -> Mapping[str, Any]:
        """Entries and bytes of each part."""
        return self.store.corpus.summary()

    def data(self, arch: ArchSpec) -> DataFile:
        """The text in the tokens of the model's vocabulary."""
        return DataFile(path=str(self.store.tokens_path(arch.vocab_size)))

    def step_tokens(self, arch: ArchSpec) -> int:
        """Tokens of a batch of windows."""
        from chipwise.training.loop.trainer import tokens_per_step

        return tokens_per_step(arch)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """UTF-8 bytes of a token, by vocabulary."""
        each = {size: self.store.tokens(size).bytes_per_token for size in self.store.sizes}
        return np.array([each[int(size)] for size in space.values(rows, "vocab_size")])

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Bits of each entry, its separator included, and its bytes."""
        data = self.store.tokens(item.design.arch.vocab_size)
        stream, _ = data.held_out(split)
        bits = exported_bits(item.design, item.weights, stream, item.folder / "judged.onnx")
        ends = np.flatnonzero(stream[1:] == 0)
        sizes = data.validation_bytes if split == "validation" else data.test_bytes
        return Losses(values=np.add.reduceat(bits, np.r_[0, ends[:-1] + 1]), sizes=sizes.astype(float))

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Greedy continuations of the beginnings of test entries by winner and reference design."""
        texts = [text for text in self.store.corpus.test if len(text.split()) > PROMPT_WORDS + 4][:CONTINUATIONS]
        prompts = [" ".join(text.split()[:PROMPT_WORDS]) for text in texts]
        found = [{"prompt": prompt} for prompt in prompts]
        for name, item in (("winner", winner), ("baseline", reference)):
            if item is not None:
                for one, text in zip(found, self._written(item, prompts), strict=True):
                    one[name] = text
        return {"continuations": found} if found else {}

    def _written(self, item: Exported, prompts: Sequence[str]) -> list[str]:
        from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

        tokenizer = self.store.tokenizer(item.design.arch.vocab_size)
        longest = item.design.arch.max_tokens
        session = OnnxRuntimeSession(item.folder / "model.onnx", capacity=longest)
        return [continued(session, tokenizer, prompt, longest) for prompt in prompts]

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """The Hugging Face folder, and ``model.gguf`` where the package ``gguf`` is there and can hold the model."""
        tokenizer = self.store.tokenizer_path(item.design.arch.vocab_size)
        save_pretrained(item.design.arch, item.weights, tokenizer, folder, dict(files))
        export_if_possible(item.design, item.weights, folder / "model.gguf", tokenizer=tokenizer)
