"""Base class for the data of tasks that generate tokens: text, and time series whose values are tokens."""

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
    """Protocol of a store of token files in a run's folder, one for each vocabulary size."""

    @property
    def sizes(self) -> Sequence[int]:
        """Vocabulary sizes of the files."""
        ...

    def prepare(self) -> None:
        """Writes the files."""
        ...

    def tokens_path(self, vocab_size: int) -> Path:
        """Path of the file of this vocabulary size."""
        ...

    def tokens(self, vocab_size: int) -> TokenData:
        """Loads the data set in the file of this vocabulary size."""
        ...


StoreT = TypeVar("StoreT", bound=Tokens)


class TokenTaskData(Generic[StoreT]):
    """Base class for a :class:`chipwise.training.tasks.protocol.TaskData` that consists of tokens.

    Args:
        store: The store of token files.
    """

    recipe: Mapping[str, object] = {}
    quick = 100_000  # bytes of text in an early evaluation

    def __init__(self, store: StoreT) -> None:
        self.store = store

    def prepare(self) -> None:
        """Writes the tokens for each vocabulary size."""
        self.store.prepare()

    def data(self, arch: ArchSpec) -> DataFile:
        """The token file for the model's vocabulary size."""
        return DataFile(path=str(self.store.tokens_path(arch.vocab_size)))

    def step_tokens(self, arch: ArchSpec) -> int:
        """Number of tokens in a batch of windows."""
        return tokens_per_step(arch)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """UTF-8 bytes per token in the vocabulary of each design."""
        each = {size: self.store.tokens(size).bytes_per_token for size in self.store.sizes}
        return np.array([each[int(size)] for size in space.values(rows, "vocab_size")])

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Bits that the exported graph assigns to each entry and its separator, and bytes of each entry."""
        data = self.store.tokens(item.design.arch.vocab_size)
        stream, _ = data.held_out(split)
        path = item.folder / "judged.onnx"
        bits = exported_bits(item.design, item.weights, stream, path, packing=item.packing)
        ends = np.flatnonzero(stream[1:] == 0)
        sizes = data.validation_bytes if split == "validation" else data.test_bytes
        return Losses(values=np.add.reduceat(bits, np.r_[0, ends[:-1] + 1]), sizes=sizes.astype(float))
