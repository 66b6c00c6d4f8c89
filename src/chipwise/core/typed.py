"""Splits informal names into words, so that ``llama3.1:8b`` and ``Llama-3.1-8B`` have the same words.

A word is a run of letters (``coder``), a number (``3.1``), a letter with its number (``r1``, ``v0.3``), a size (``8b``,
``8x7b``, ``a3b``, ``e4b``) or a memory size (``64gb``). Names are compared as multisets of words, so order, case and
punctuation do not matter, but no typed word is silently ignored.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

_MEMORY = r"\d+(?:\.\d+)?g(?:i?b)?(?![a-z0-9])"
_WORD = re.compile(
    r"\d+x\d+(?:\.\d+)?b(?![a-z0-9])"  # 8x7b: experts
    r"|(?<![a-z])[ae]?\d+(?:\.\d+)?[bmt](?![a-z0-9])"  # 8b, 270m, 1t, a3b (active), e4b (effective)
    r"|\d+e(?![a-z0-9])"  # 16e: experts
    rf"|{_MEMORY}"
    r"|(?<![a-z])[a-z]\d+(?:\.\d+)*"  # r1, k2.5, v0.3, m4, a100
    r"|\d+(?:\.\d+)*"
    r"|[a-z]+"
    r"|[^\s\-_:/.,()'\"®™]"  # any other character except punctuation, so that nothing is ignored
)
LEAST_SHARED = 0.34  # share of a name's words that must match for a suggestion


@cache
def words_of(text: str) -> tuple[str, ...]:
    """Splits a name into words, in order.

    >>> words_of("Qwen2.5-Coder:7B"), words_of("rtx4070ti 12GB"), words_of("M4-Max")
    (('qwen', '2.5', 'coder', '7b'), ('rtx', '4070', 'ti', '12gb'), ('m4', 'max'))
    """
    text = re.sub(r"(\d)\s+(?=gi?b\b)", r"\1", text.lower())  # 64 GB
    return tuple(_WORD.findall(text.replace("+", " plus ").replace("_", " ")))


def left_of(words: Iterable[str], taken: Iterable[str]) -> list[str]:
    """``words`` without the words in ``taken``. A word is removed as often as it occurs in ``taken``."""
    return sorted((Counter(words) - Counter(taken)).elements())


def memory_bytes(word: str) -> tuple[float, float] | None:
    """The two sizes in bytes that ``64gb`` may mean: 64 · 10⁹ and 64 · 2³⁰. None for other words."""
    if re.fullmatch(_MEMORY, word) is None:
        return None
    number = float(re.match(r"[\d.]+", word)[0])  # type: ignore[index]  # the pattern begins with a number
    return number * 1e9, number * 2.0**30


def alike(words: Sequence[str], known: Mapping[str, Sequence[str]], *, most: int = 4) -> list[str]:
    """The known names that share the most words with ``words``, best first.

    Words of two or more letters, and words that begin with three digits, count double.
    """
    scored = []
    for name, others in known.items():
        shared = left_of(words, left_of(words, others))
        weight = sum(_weight(word) for word in shared)
        if weight:
            whole = sum(map(_weight, words)) + sum(map(_weight, others))
            spelled = difflib.SequenceMatcher(None, " ".join(words)[:100], " ".join(others)).ratio()
            scored.append((-2 * weight / whole, -spelled, name))
    return [name for share, _, name in sorted(scored)[:most] if -share >= LEAST_SHARED]


def _weight(word: str) -> int:
    return 2 if (word.isalpha() and len(word) > 1) or re.match(r"\d{3}", word) else 1
