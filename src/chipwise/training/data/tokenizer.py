"""Byte-level BPE tokenizers.

Only the largest tokenizer is trained; smaller vocabularies are prefixes of its vocabulary.

Token 0 separates entries. A stream of tokens is ``sep entry sep entry … sep``, so models learn to predict each entry
and its end.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chipwise.core.files import read_text, write_atomic
from chipwise.errors import DataError, InputError, SpecError, StudyError
from chipwise.training.data.array_file import write_arrays
from chipwise.training.data.text import Corpus
from chipwise.training.data.tokens import TokenData, Tokens, load_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEPARATOR = "<|endoftext|>"
SMALLEST = 257  # the separator and the 256 bytes
LARGEST = 65_536  # tokens are stored in 16 bits


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a ``tokenizers.Tokenizer`` with ``vocab_size`` tokens on ``texts``.

    Raises:
        DataError: The text is too uniform to yield that many tokens.
    """
    _check_size(vocab_size)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise DataError(
            f"the text yields only {tokenizer.get_vocab_size()} different tokens, not {vocab_size}; add text "
            "or choose smaller vocabularies"
        )
    return tokenizer


def cut(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """``tokenizer`` reduced to its first ``vocab_size`` tokens; equal to a tokenizer trained with this size."""
    from tokenizers import Tokenizer

    _check_size(vocab_size)
    state = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = state["model"]["vocab"]
    if vocab_size > len(vocab):
        raise InputError(f"a tokenizer of {len(vocab)} tokens cannot be reduced to {vocab_size} tokens")
    merges = []
    for merge in state["model"]["merges"]:
        if vocab["".join(merge)] >= vocab_size:
            break  # tokens are numbered in the order in which merges created them
        merges.append(merge)
    state["model"]["merges"] = merges
    state["model"]["vocab"] = {token: number for token, number in vocab.items() if number < vocab_size}
    return Tokenizer.from_str(json.dumps(state))


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokens:
    """Encodes ``texts`` as one stream of tokens, with a separator at the beginning and after each text."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    separator = tokenizer.token_to_id(SEPARATOR)
    parts = [np.array([separator], dtype=np.uint16)]
    for start in range(0, len(texts), 1000):
        batch = tokenizer.encode_batch_fast(list(texts[start : start + 1000]), add_special_tokens=False)
        parts += [np.array([*item.ids, separator], dtype=np.uint16) for item in batch]
    return np.concatenate(parts)


class Splitter:
    """Converts tokens of ``tokenizer`` to tokens of a smaller tokenizer made with :func:`cut`; needs no text.

    BPE applies merges in order, and the merge that creates a token comes before all merges that use the token. Undoing
    the merges that the smaller tokenizer lacks therefore gives exactly its tokens.

    Args:
        tokenizer: The larger tokenizer.
        vocab_size: Vocabulary size of the smaller tokenizer.

    Raises:
        InputError: A token that the smaller tokenizer lacks is not the result of exactly one merge, so it cannot be
            converted.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        vocab: dict[str, int] = model["vocab"]
        parts: dict[int, list[int]] = {number: [number] for number in range(vocab_size)}
        for left, right in model["merges"]:
            made = vocab[left + right]
            if made < vocab_size:
                continue
            if made in parts:
                raise InputError(f"two merges create the token {left + right!r}, so the tokenizer cannot be reduced")
            parts[made] = parts[vocab[left]] + parts[vocab[right]]
        if len(parts) < len(vocab):
            raise InputError("a token is not the result of a merge, so the tokenizer cannot be reduced")
        self._lengths = np.array([len(parts[number]) for number in range(len(parts))])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._parts = np.concatenate([parts[number] for number in range(len(parts))]).astype(np.uint16)

    def __call__(self, stream: Tokens) -> Tokens:
        """Converts the tokens ``stream`` (n,) to tokens of the smaller vocabulary."""
        lengths = self._lengths[stream]
        begins = np.cumsum(lengths) - lengths  # of each token's parts in the result
        places = np.arange(lengths.sum()) + np.repeat(self._starts[stream] - begins, lengths)
        return np.asarray(self._parts[places])


def entry_bytes(texts: Sequence[str]) -> NDArray[np.int64]:
    """Number of UTF-8 bytes of each text."""
    return np.array([len(text.encode()) for text in texts], dtype=np.int64)


PARTS = ("train", "validation", "test")


class TokenStore:
    """The tokenizers and token arrays of one corpus, created once and stored in ``folder``.

    Args:
        corpus: The text.
        folder: Folder for the files ``tokenizer-<size>.json`` and ``tokens-<size>.npz``.
        sizes: Every vocabulary size that will be used.
    """

    def __init__(self, corpus: Corpus, folder: str | Path, sizes: Iterable[int]) -> None:
        self.corpus, self.folder = corpus, Path(folder)
        self.sizes = sorted(set(sizes))
        if not self.sizes:
            raise InputError("no vocabulary size is given")
        for size in self.sizes:
            _check_size(size)
        self._largest: Tokenizer | None = None

    def prepare(self) -> None:
        """Creates the files that are missing in the folder."""
        self._check_text()
        if not self._stamp.exists():
            write_atomic(self._stamp, self.corpus.digest + "\n")
        for size in self.sizes:
            self.tokenizer(size)
            self.tokens(size)

    def tokenizer_path(self, vocab_size: int) -> Path:
        """Path of the tokenizer of this size."""
        return tokenizer_path(self.folder, vocab_size)

    def tokens_path(self, vocab_size: int) -> Path:
        """Path of the token arrays of this size."""
        return self.folder / f"tokens-{vocab_size}.npz"

    @property
    def _stamp(self) -> Path:
        return self.folder / "corpus.digest"

    def _check_text(self) -> None:
        """Raises an error if the folder contains the tokens of a different text."""
        if self._stamp.exists() and self._stamp.read_text().strip() != self.corpus.digest:
            raise StudyError(
                f"{self.folder}: contains the tokens of a different text, or of this text without a test part (as "
                "versions up to 0.1 divided it); start again with --restart, or choose another folder"
            )

    def tokenizer(self, vocab_size: int) -> Tokenizer:
        """The tokenizer of this size, created at the first call."""
        path = self.tokenizer_path(vocab_size)
        self._check_text()
        if path.exists():
            return load_tokenizer(path)
        if self._largest is None:
            largest = self.tokenizer_path(self.sizes[-1])
            if largest.exists():
                self._largest = load_tokenizer(largest)
            else:
                self._largest = train_tokenizer(self.corpus.train, self.sizes[-1])
                write_atomic(self._stamp, self.corpus.digest + "\n")
                write_atomic(largest, self._largest.to_str(pretty=True))
        chosen = cut(self._largest, vocab_size)
        write_atomic(path, chosen.to_str(pretty=True))
        return chosen

    def tokens(self, vocab_size: int) -> TokenData:
        """The corpus in tokens of this size, encoded at the first call."""
        path = self.tokens_path(vocab_size)
        if not path.exists():
            corpus = self.corpus
            arrays = {
                "sizes": np.array([vocab_size, corpus.bytes_train]),
                **self._streams(vocab_size),
                "validation_bytes": entry_bytes(corpus.validation),
                "test_bytes": entry_bytes(corpus.test),
            }
            write_arrays(path, arrays)
        return load_tokens(path)

    def _streams(self, vocab_size: int) -> dict[str, Tokens]:
        """The corpus parts in tokens of this vocabulary size, converted from the largest vocabulary if possible."""
        largest, tokenizer = self.sizes[-1], self.tokenizer(vocab_size)
        if vocab_size < largest:
            try:
                split = Splitter(self.tokenizer(largest), vocab_size)
            except InputError:
                pass  # not a tokenizer of ours: encode the text again
            else:
                whole = self.tokens(largest)
                return {name: split(getattr(whole, name)) for name in PARTS}
        return {name: encode(tokenizer, getattr(self.corpus, name)) for name in PARTS}


def tokenizer_path(folder: Path, vocab_size: int) -> Path:
    """Path of the tokenizer of this size in ``folder``."""
    return folder / f"tokenizer-{vocab_size}.json"


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Loads a ``tokenizers.Tokenizer`` from a file.

    Raises:
        DataError: The file is missing or contains no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(read_text(path))
    except SpecError as error:
        raise DataError(error.message, file=error.file) from None
    except Exception as error:  # the library raises plain Exception
        place = re.search(r" at line \d+ column \d+", str(error))
        broken = f"broken{place[0] if place else ''}"
        raise DataError(f"{path}: has no tokenizer ({broken}); restore it, or delete it if a run created it") from None


def _check_size(vocab_size: int) -> None:
    if not SMALLEST <= vocab_size <= LARGEST:
        raise InputError(f"a vocabulary must have from {SMALLEST} to {LARGEST} tokens, not {vocab_size}")
