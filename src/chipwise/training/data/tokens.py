"""Data set of text as tokens of one vocabulary; quality is measured in bits per byte.

Bits per byte of held-out text are comparable between models with different vocabularies. The bits of separators are
included. Evaluation windows are as long as training windows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.data.array_file import read_arrays
from chipwise.training.data.dataset import HeldOutScore, Split
from chipwise.training.data.recipe import WINDOW_TOKENS, Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from chipwise.model.kinds.text.module import Transformer

Tokens = NDArray[np.uint16]
IDENTIFYING = 4096  # number of leading tokens that identify a text
ROWS = 32  # windows at a time when a model is evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of a model on held-out text."""

    bits_per_byte: float
    perplexity: float  # per token
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData:
    """A corpus in the tokens of one vocabulary, as a :class:`chipwise.training.data.dataset.Dataset` of windows.

    The token arrays begin with a separator. Models read it but do not predict it; they predict all later tokens.
    """

    vocab_size: int
    train: Tokens
    bytes_train: int
    validation: Tokens
    validation_bytes: NDArray[np.int64]  # UTF-8 bytes of each validation entry
    test: Tokens
    test_bytes: NDArray[np.int64]  # UTF-8 bytes of each test entry

    @classmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> TokenData:
        """Builds the data set from the arrays of a file."""
        vocab_size, bytes_train = (int(value) for value in file["sizes"])
        return cls(
            vocab_size=vocab_size,
            train=file["train"].astype(np.uint16),
            bytes_train=bytes_train,
            validation=file["validation"].astype(np.uint16),
            validation_bytes=file["validation_bytes"].astype(np.int64),
            test=file["test"].astype(np.uint16),
            test_bytes=file["test_bytes"].astype(np.int64),
        )

    def held_out(self, split: Split = "validation", *, max_bytes: int | None = None) -> tuple[Tokens, int]:
        """The first entries of ``split`` as tokens, and the number of bytes of their text.

        ``max_bytes`` limits the number of bytes, but at least one entry is returned. The entries are the
        same for every vocabulary. The stream begins with a separator, which is not predicted.

        Raises:
            InputError: The corpus has no text in that part.
        """
        stream, sizes = (
            (self.validation, self.validation_bytes) if split == "validation" else (self.test, self.test_bytes)
        )
        if not len(sizes):
            raise InputError(f"the corpus has no {split} text")
        sums = np.cumsum(sizes)
        count = len(sums) if max_bytes is None else max(1, int(np.searchsorted(sums, max_bytes, side="right")))
        ends = np.flatnonzero(stream == 0)  # positions of the separator before each entry, and of the last one
        return stream[: ends[count] + 1], int(sums[count - 1])

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes per token of the training part, separators counted as tokens."""
        return self.bytes_train / (len(self.train) - 1)

    @property
    def identity(self) -> Sequence[object]:
        """Values that identify the data: numbers of training tokens and bytes, and the first training tokens."""
        return [len(self.train), self.bytes_train, self.train[:IDENTIFYING].tolist()]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model's vocabulary size differs."""
        if self.vocab_size != arch.vocab_size:
            raise InputError(f"the model has {arch.vocab_size} tokens, the text was encoded with {self.vocab_size}")

    def window(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Number of tokens in a training window: the model's context, or less if the text is short."""
        window = min(recipe.window_tokens, arch.max_tokens)
        return window if len(self.train) > 2 * window else max(1, len(self.train) // 4)

    def step_tokens(self, arch: ArchSpec, recipe: Recipe) -> int:
        """Tokens in a batch of windows."""
        return self.window(arch, recipe) * recipe.batch_windows

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Inputs and targets, each (windows, tokens)."""
        return windows_of(self.train, self.window(arch, recipe), recipe.batch_windows, number, seed)

    def loss(self, model: Any, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy in nats per token."""
        import torch

        from chipwise.training.loop.loss import head_loss

        inputs, targets = batch
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            x, _ = model.hidden(inputs)
        return head_loss(x.reshape(-1, x.shape[-1]).to(dtype), model.head_table, targets.reshape(-1))

    def shown_loss(self, loss: float) -> float:
        """Converts nats per token to bits per byte."""
        return loss / math.log(2) / self.bytes_per_token

    def judge(
        self,
        model: Any,
        *,
        split: Split = "validation",
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> HeldOutScore:
        """Bits per byte of ``split``, or only of its first ``most`` bytes."""
        found = self.quality(model, split=split, max_bytes=most, dtype=dtype)
        return HeldOutScore(loss=found.bits_per_byte, perplexity=found.perplexity)

    def quality(
        self,
        model: Transformer,
        *,
        split: Split = "validation",
        max_bytes: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Quality:
        """Quality of ``model`` on ``split``; if ``max_bytes`` is given, only on the first entries that fit into it.

        ``dtype`` is the number format of matrix products.
        """
        import torch

        self.require_fit(model.arch)
        stream, size_bytes = self.held_out(split, max_bytes=max_bytes)
        tokens = torch.from_numpy(stream.astype(np.int64)).to(model.head_table.device)
        count, nats = len(tokens) - 1, 0.0
        window = min(WINDOW_TOKENS, model.arch.max_tokens)
        full = count // window
        with torch.no_grad(), torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            inputs, targets = (tokens[i : i + full * window].view(full, window) for i in (0, 1))
            for start in range(0, full, ROWS):
                nats += _nats(model, inputs[start : start + ROWS], targets[start : start + ROWS])
            if full * window < count:
                nats += _nats(model, tokens[None, full * window : -1], tokens[None, full * window + 1 :])
        return Quality(
            bits_per_byte=nats / math.log(2) / size_bytes,
            perplexity=math.exp(min(700.0, nats / count)) if math.isfinite(nats) else math.inf,
            tokens=count,
            bytes=size_bytes,
        )


def _nats(model: Transformer, inputs: Tensor, targets: Tensor) -> float:
    """Summed cross entropy of all targets."""
    from torch.nn import functional

    x, _ = model.hidden(inputs)
    logits = functional.linear(x.reshape(-1, x.shape[-1]), model.head_table).float()
    return float(functional.cross_entropy(logits, targets.reshape(-1), reduction="sum"))


def load_tokens(path: str | Path) -> TokenData:
    """Loads token arrays that a :class:`chipwise.training.data.tokenizer.TokenStore` wrote.

    Raises:
        DataError: The file is missing or is not what a TokenStore writes.
    """
    return read_arrays(path, TokenData.of_fields, what="tokens")


def windows_of(tokens: Tokens, window: int, count: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of step ``step``, each (count, window), determined by the arguments alone.

    Each epoch shifts the windows by a different offset and visits them in a different order.
    """
    import torch

    windows = (len(tokens) - 1) // window - 1
    if windows < 1:
        raise InputError(f"{len(tokens)} tokens are too few for windows of {window}")
    rows = []
    for number in range(step * count, (step + 1) * count):
        epoch, place = divmod(number, windows)
        offset, order = _epoch(seed, epoch, windows, window)
        start = offset + int(order[place]) * window
        rows.append(tokens[start : start + window + 1])
    block = torch.from_numpy(np.stack(rows).astype(np.int64))
    return block[:, :-1], block[:, 1:]


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, windows: int, window: int) -> tuple[int, AnyArray]:
    random = np.random.default_rng([seed, epoch])
    return int(random.integers(window)), random.permutation(windows)
