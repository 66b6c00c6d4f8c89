"""Short texts as word ids of a fixed length, from a table of the most frequent words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

UNKNOWN, NOTHING = "<unknown>", "<nothing>"  # an unknown word, and the padding before a short text
WORD = r"[\w']+|[^\w\s]"
_WORD = re.compile(WORD)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; punctuation marks are words too.

    >>> words_of("How many circles?")
    ['how', 'many', 'circles', '?']
    """
    return _WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], most: int) -> tuple[str, ...]:
    """A vocabulary of ``most`` words: two special ones, then the most frequent; ties are in alphabetical order."""
    counts = Counter(word for text in texts for word in words_of(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (NOTHING, UNKNOWN, *ranked[: most - 2])


def encoded(texts: Iterable[str], words: tuple[str, ...], length: int) -> NDArray[np.int64]:
    """Texts as word ids, (n, length), right-aligned; long texts lose their beginning."""
    numbers = {word: i for i, word in enumerate(words)}
    rows = []
    for text in texts:
        found = [numbers.get(word, 1) for word in words_of(text)][-length:]
        rows.append([0] * (length - len(found)) + found)
    return np.array(rows, np.int64).reshape(-1, length)
