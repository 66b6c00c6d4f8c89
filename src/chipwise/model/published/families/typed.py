"""Finds the known model that a user's typed name means. Every typed word must match.

A typed word matches a known model if the word is in the model's name, names the model's maker, or is a word for tuning
or storage (``instruct``, ``q4_k_m``). If the model's name has no size, a typed size matches if it is about the model's
number of parameters (``phi4:14b``).

Words of the model's name that were not typed may only be sizes, releases and words for tuning: ``qwen3 30b`` is
Qwen3-30B-A3B and never Qwen3-Coder-30B-A3B, because ``coder`` was not typed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chipwise.core.typed import alike, left_of, words_of
from chipwise.errors import AmbiguousName, UnknownName

# Words for how a model was tuned, which do not affect the architecture.
TUNED = frozenset({"instruct", "it", "pt", "chat", "base", "hf", "thinking", "reasoning", "latest", "library"})
STORED = re.compile(
    r"(?<![a-z0-9])(?:ud[-_])?(?:i?q\d(?:_[a-z0-9]+)*|q4f16(?:_\d)?|\d+[- ]?bits?|\d(?:\.\d+)?bpw|gguf|ggml|mlx|awq"
    r"|gptq(?:-int[48])?|qat|bnb|dwq|exl[23]|int[48]|w\d+a\d+|nvfp4|mxfp4|fp4|fp8(?:[-_](?:dynamic|block|static"
    r"(?:[-_]pertensor)?))?|b?fp?16|f32|fp32)(?![a-z0-9])"
)
_HOST = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|ollama\.com)/")
_PAGE = re.compile(r"/(?:tree|blob|resolve|raw)/.*$|[?#].*$")
_SIZE = re.compile(r"[ae]?\d+(?:\.\d+)?[bmt]|\d+x\d+(?:\.\d+)?b|\d+e")
_YEAR = re.compile(r"\d{4}")  # year and month, in either order
_RELEASE = re.compile(rf"v\d+(?:\.\d+)+|{_YEAR.pattern}")  # v0.3, 2507
_MAKERS = frozenset({"deepseek", "meta", "nvidia"})  # makers that begin model names but are often omitted
_UNIT = {"m": 1e6, "b": 1e9, "t": 1e12}
MOST_POINTS = 4  # most underscores between digits that are tried as decimal points
AS_ROUNDED = 0.06  # largest relative rounding of parameters in a name: phi4:14b has 14.7 billion


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a known model: its words, and the words by which users may name the model's maker."""

    id: str
    words: tuple[str, ...]
    maker: tuple[str, ...]
    page: str  # the name after the slash, in lower case

    @classmethod
    def of(cls, known: str, alias: str | None = None) -> Entry:
        """The entry for an id or, with ``alias``, for another name of that id."""
        owner, _, tail = known.rpartition("/")
        name = alias or tail
        maker = {word for part in (owner, owner.removesuffix("ai")) for word in words_of(part)}
        return cls(id=known, words=_counted(name), maker=tuple(sorted(maker)), page=name.lower())


def page_of(name: str) -> str:
    """``name`` without a web address, and without suffixes that browsers or Ollama add.

    >>> page_of("https://huggingface.co/Qwen/Qwen3-8B/tree/main"), page_of("hf.co/unsloth/gemma-3-4b-it-GGUF:Q4_K_M")
    ('Qwen/Qwen3-8B', 'unsloth/gemma-3-4b-it-GGUF:Q4_K_M')
    """
    text = name.strip()
    shorter = _HOST.sub("", text)
    return text if shorter == text else _PAGE.sub("", shorter).removeprefix("library/").rstrip("/")


def key_of(name: str) -> str:
    """The words of ``name`` that identify a model, joined into one text; nickname tables use it as their key."""
    return " ".join(_counted(name))


def meant(
    name: str, entries: Sequence[Entry], parameters: Callable[[str], float], same: Callable[[str, str], bool]
) -> str:
    """The id of the single entry that ``name`` means.

    Args:
        name: The typed name, without the repository's owner.
        entries: All known names of models.
        parameters: Given an id, returns the model's number of parameters.
        same: Returns whether two ids have equal configs.

    Raises:
        AmbiguousName: Several entries fit.
        UnknownName: No entry fits; the message lists the most similar names.
    """
    typed = _counted(name)
    perfect: list[str] = []
    unsized: list[str] = []
    wider: list[str] = []
    if any(word.isalpha() and len(word) > 1 for word in typed):
        for entry in entries:
            missing = _missing(typed, entry, parameters)
            if missing is None:
                continue
            told = [word for word in missing if not (_SIZE.fullmatch(word) or _RELEASE.fullmatch(word))]
            (wider if told else unsized if missing else perfect).append(entry.id)
    for found in (perfect, unsized):
        if found:
            found.sort(key=lambda known: len(left_of(_counted(known), typed)))
            first, *others = dict.fromkeys(found)
            if all(same(first, other) for other in others):
                return first
            raise AmbiguousName("model", name, [first, *others])
    near = alike(typed, {entry.id: entry.words for entry in entries})
    raise unknown(name, list(dict.fromkeys([*wider, *near]))[:5], [entry.id for entry in entries])


def spellings(name: str) -> list[str]:
    """Other spellings of ``name``: with decimal points in its numbers, and without ``v`` before a release.

    >>> spellings("qwen3_0_6b"), spellings("Llama-v3.2-1B-Instruct")
    (['qwen3.0_6b', 'qwen3_0.6b', 'qwen3.0.6b'], ['llama-3.2-1b-instruct'])
    """
    low = name.lower()
    places = [found.start() for found in re.finditer(r"(?<=\d)_(?=\d)", low)][:MOST_POINTS]
    found: dict[str, None] = {}
    for chosen in range(2 ** len(places)):
        letters = list(low)
        for i, place in enumerate(places):
            if chosen >> i & 1:
                letters[place] = "."
        written = "".join(letters)
        found[written] = None
        found[re.sub(r"(?<=[-_])v(?=\d)", "", written)] = None
        found[re.sub(r"(?<![a-z0-9])(\d+)p(\d+)(?=[bm])", r"\1.\2", written)] = None
    return [each for each in found if each != low]


def _missing(typed: Sequence[str], entry: Entry, parameters: Callable[[str], float]) -> list[str] | None:
    """The words of an entry that were not typed; None if a typed word does not fit the entry."""
    own = list(entry.words)
    neutral = () if "base" in own else ("base",)  # a size of BERT and Whisper; in other names a word for tuning
    extra = [word for word in left_of(typed, own) if word not in neutral and word not in entry.maker]
    if extra:
        sized = any(_SIZE.fullmatch(word) for word in own)
        if sized or len(extra) > 1 or (size := _parameters_in(extra[0])) is None:
            return None
        if abs(size / parameters(entry.id) - 1) > AS_ROUNDED:
            return None
    return [word for word in left_of(own, typed) if word not in _MAKERS]


def _parameters_in(word: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([bmt])", word)
    return None if found is None else float(found[1]) * _UNIT[found[2]]


def _counted(name: str) -> tuple[str, ...]:
    """The words that identify a model, without words for tuning and storage."""
    words = words_of(STORED.sub(" ", name.lower()))
    sized = any(_SIZE.fullmatch(word) or _YEAR.fullmatch(word) for word in words)
    return tuple(sorted(word for word in words if word not in TUNED or (word == "base" and not sized)))


def unknown(name: str, near: Sequence[str], known: Sequence[str]) -> UnknownName:
    """The error for a name that matches none of ``known``, with the most similar names."""
    return UnknownName("model", name, known, listed_by="chipwise models", near=near)
