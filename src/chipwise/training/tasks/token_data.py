"""Base of tasks with generated tokens: text, and series whose values are tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.data.recipe import tokens_per_step
from chipwise.training.data.tokens import TokenData
from chipwise.training.tasks.exported_text import exported_bits
from chipwise.training.tasks.protocol import Exported, Losses


class Tokens(Protocol):
    """Files of tokens by vocabulary size in the folder of a run."""

    @property
    def sizes(self) -> Sequence[int]:
        """Vocabulary sizes."""
        ...

    def prepare(self) -> None:
        """Writes them."""
        ...

    def tokens_path(self, vocab_size: int) -> Path:
        """One of them."""
        ...

    def tokens(self, vocab_size: int) -> TokenData:
        """What it holds."""
        ...


StoreT = TypeVar("StoreT", bound=Tokens)


class TokenTaskData(Generic[StoreT]):
    """Base of :class:`chipwise.training.tasks.protocol.TaskData` whose trainings read windows of tokens.

    Args:
        store: Files of tokens by vocabulary size.
    """

    recipe: Mapping[str, object] = {}
    quick = 100_000  # bytes

    def __init__(self, store: StoreT) -> None:
        self.store = store

    def prepare(self) -> None:
        """Writes the tokens of each vocabulary."""
        self.store.prepare()

    def data(self, arch: ArchSpec) -> DataFile:
        """The tokens of the model's vocabulary."""
        return DataFile(path=str(self.store.tokens_path(arch.vocab_size)))

    def step_tokens(self, arch: ArchSpec) -> int:
        """Tokens of a batch of windows."""
        return tokens_per_step(arch)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """UTF-8 bytes of a token, by vocabulary."""
        each = {size: self.store.tokens(size).bytes_per_token for size in self.store.sizes}
        return np.array([each[int(size)] for size in space.values(rows, "vocab_size")])

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Bits (with the separator) and bytes of each entry."""
        data = self.store.tokens(item.design.arch.vocab_size)
        stream, _ = data.held_out(split)
        path = item.folder / "judged.onnx"
        bits = exported_bits(item.design, item.weights, stream, path, packing=item.packing)
        ends = np.flatnonzero(stream[1:] == 0)
        sizes = data.validation_bytes if split == "validation" else data.test_bytes
        return Losses(values=np.add.reduceat(bits, np.r_[0, ends[:-1] + 1]), sizes=sizes.astype(float))
