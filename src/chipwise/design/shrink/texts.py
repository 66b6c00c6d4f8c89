"""Texts as tokens, in batches of similar length, with the hidden states of the original model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chipwise.core.digest import digest
from chipwise.core.fields import convert
from chipwise.core.files import read_mapping, reserve, storage, write_json
from chipwise.design.shrink.forward import (
    Weights,
    autocast,
    distance,
    divergence,
    head_of,
    next_tokens,
    states,
    thinned,
)
from chipwise.design.shrink.sizes import generates
from chipwise.errors import DataError, InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.nn.precision import Precision
from chipwise.training.data.tokenizer import load_tokenizer

Tokens = npt.NDArray[np.int64]
BATCH_TOKENS = 2048
LEAST_TEXTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Tokens of all texts, concatenated."""

    tokens: Tokens
    starts: Tokens  # offset of each text, and the end of the last one

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def digest(self) -> str:
        """Digest that identifies the texts."""
        return digest([self.tokens[:4096].tolist(), len(self.tokens), len(self)])

    def batches(self, *, tokens: int = BATCH_TOKENS) -> list[Tokens]:
        """Batches of text indices, grouped by length; each has about ``tokens`` tokens including padding."""
        lengths = np.diff(self.starts)
        found: list[Tokens] = []
        rows: list[int] = []
        for number in np.argsort(lengths, kind="stable"):
            if rows and (len(rows) + 1) * lengths[number] > tokens:
                found.append(np.array(rows))
                rows = []
            rows.append(int(number))
        return [*found, np.array(rows)]

    def padded(self, numbers: Sequence[int] | Tokens) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) of these texts, padded at the end with token 0, and a mask that is true for text."""
        lengths = np.diff(self.starts)[numbers]
        block = np.zeros((len(numbers), int(lengths.max())), np.int64)
        for row, number in enumerate(numbers):
            block[row, : lengths[row]] = self.tokens[self.starts[number] : self.starts[number + 1]]
        return torch.from_numpy(block), torch.from_numpy(np.arange(block.shape[1])[None] < lengths[:, None])

    def passes(self, arch: ArchSpec, weights: Weights) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
        """Yields for each batch the mask (true for text), and a function that runs the model on the batch."""
        for numbers in self.batches():
            tokens, mask = self.padded(numbers)
            yield mask, functools.partial(states, arch, weights, tokens, mask)

    def first(self, count: int) -> Texts:
        """The first ``count`` texts."""
        starts = self.starts[: count + 1]
        return Texts(tokens=self.tokens[: starts[-1]], starts=starts)


def encode(tokenizer_path: Path, texts: Sequence[str], *, longest: int) -> Texts:
    """Encodes ``texts`` with special tokens; each text is truncated to ``longest`` tokens.

    Raises:
        DataError: Fewer than ``LEAST_TEXTS`` texts have more than one token.
    """
    tokenizer = load_tokenizer(tokenizer_path)
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    rows = [item.ids for item in tokenizer.encode_batch(list(texts)) if len(item.ids) > 1]
    if len(rows) < LEAST_TEXTS:
        raise DataError(f"{len(rows)} texts are too few to score cuts; give at least {LEAST_TEXTS} texts")
    return Texts(
        tokens=np.concatenate([np.array(row, np.int64) for row in rows]),
        starts=np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
    )


class Targets:
    """The original's hidden states at every token of ``texts``, computed once and stored as FP16.

    This is a :class:`chipwise.design.shrink.material.Comparison` whose batches are indices of texts.

    Args:
        texts: The texts.
        values: Hidden states (tokens, D).
        head: The original's head (V, D) if it is a decoder; empty for an encoder.
        precision: Number format of matrix products.
        scoring_tokens: Largest number of tokens per batch when pruned models are scored.
    """

    def __init__(
        self,
        texts: Texts,
        values: npt.NDArray[np.float16],
        head: Tensor,
        *,
        precision: Precision = "fp32",
        scoring_tokens: int = BATCH_TOKENS,
    ) -> None:
        self.texts, self._values, self._head, self._precision = texts, values, head, precision
        self._scoring_tokens = scoring_tokens
        self._divided: dict[int, list[Tokens]] = {}
        self._kept: dict[bytes, Tensor] = {}

    @property
    def identity(self) -> str:
        """Digest of the texts."""
        return self.texts.digest

    def spread(self, batches: int) -> list[Tokens]:
        """About ``batches`` batches, evenly spread over text lengths."""
        work = self.texts.batches(tokens=self._scoring_tokens)
        return work[:: max(1, len(work) // batches)][:batches]

    def lesson(self, step: int, *, tokens: int, seed: int) -> Tokens:
        """The batch of a training step. Each epoch uses every batch once, in a new order."""
        if tokens not in self._divided:
            self._divided[tokens] = self.texts.batches(tokens=tokens)
        work = self._divided[tokens]
        return work[next(itertools.islice(order_of_batches(len(work), seed=seed), step, None))]

    def size(self, batch: Tokens) -> int:
        """Number of texts in a batch."""
        return len(batch)

    def distance(self, arch: ArchSpec, weights: Weights, batch: Tokens) -> Tensor:
        """Distance of a pruned model from the original on a batch of texts; 0 if they agree.

        For encoders this is :func:`chipwise.design.shrink.forward.distance`; for decoders the KL divergence in nats.
        """
        tokens, mask = self.texts.padded(batch)
        with autocast(self._precision):
            found = states(arch, weights, tokens, mask)
        if not generates(arch):
            return distance(found, self.of(batch, tokens.shape[1]), mask)
        mask = thinned(mask, arch.vocab_size)
        return divergence(next_tokens(found[mask], head_of(arch, weights)), self._wanted(batch, mask))

    def _wanted(self, batch: Tokens, mask: Tensor) -> Tensor:
        """The original's :func:`next_tokens` at ``mask``; kept in memory for the batches on which models are scored."""
        key = batch.tobytes()
        if key not in self._kept:
            with torch.no_grad():
                found = next_tokens(self.of(batch, mask.shape[1])[mask], self._head)
            if torch.is_grad_enabled():
                return found
            self._kept[key] = found
        return self._kept[key]

    def loss(self, arch: ArchSpec, weights: Weights, batch: Tokens) -> Tensor:
        """The training loss: only the distance, because texts have no labels."""
        return self.distance(arch, weights, batch)

    def of(self, numbers: Tokens, tokens: int) -> Tensor:
        """The original's hidden states (B, T, D) for these texts, zero at padding."""
        block = np.zeros((len(numbers), tokens, self._values.shape[1]), np.float32)
        for row, number in enumerate(numbers):
            start, end = self.texts.starts[number : number + 2]
            block[row, : end - start] = self._values[start:end]
        return torch.from_numpy(block)


def make_targets(
    arch: ArchSpec,
    weights: Weights,
    texts: Texts,
    path: Path,
    *,
    precision: Precision = "fp32",
    scoring_tokens: int = BATCH_TOKENS,
    on_progress: Callable[[int, int], None] = lambda a, b: None,
) -> Targets:
    """The original's hidden states for ``texts``: read from the file ``path``, or else computed and stored there.

    A computation that was stopped continues after its last finished batch.

    The number format of matrix products may be BF16, which changes the states a thousand times less than pruning does.
    """
    shape, head = (len(texts.tokens), arch.d_model), head_of(arch, weights)
    made = functools.partial(Targets, texts, head=head, precision=precision, scoring_tokens=scoring_tokens)
    if path.exists():
        return made(np.load(path, mmap_mode="r"))
    part, count = path.with_suffix(".part.npy"), path.with_suffix(".part.json")
    with storage(path), torch.no_grad():
        path.parent.mkdir(parents=True, exist_ok=True)
        work = texts.batches()
        about = {"texts": texts.digest, "shape": list(shape), "precision": precision, "batches": len(work)}
        begun = _finished(part, count, about)
        mode: Literal["r+", "w+"] = "r+" if begun else "w+"
        values = np.lib.format.open_memmap(part, mode=mode, dtype=np.float16, shape=shape)
        reserve(part)
        for done, numbers in enumerate(work):
            if done < begun:
                continue
            tokens, mask = texts.padded(numbers)
            with autocast(precision):
                found = states(arch, weights, tokens, mask).float().numpy()
            for row, number in enumerate(numbers):
                start, end = texts.starts[number : number + 2]
                values[start:end] = found[row, : end - start]
            values.flush()
            write_json(count, {**about, "done": done + 1})
            on_progress(done + 1, len(work))
        part.rename(path)
        count.unlink(missing_ok=True)
    return made(np.load(path, mmap_mode="r"))


def _finished(part: Path, count: Path, about: Mapping[str, object]) -> int:
    """Number of finished batches in the file of a stopped computation; 0 if the file is damaged or of another run."""
    if not (part.exists() and count.exists()):
        return 0
    try:
        held = read_mapping(count)
        shape = np.load(part, mmap_mode="r").shape
    except (InputError, ValueError, OSError):
        return 0
    same = {**held, "done": None} == {**about, "done": None}
    return convert(int, held["done"], "done") if same and list(shape) == about["shape"] else 0


def order_of_batches(count: int, *, seed: int) -> Iterator[int]:
    """Yields batch indices endlessly, in a new order in each epoch."""
    epoch = 0
    while True:
        yield from np.random.default_rng([seed, epoch]).permutation(count).tolist()
        epoch += 1
