"""Configs of well-known models, one file per family, copied from their ``config.json``.

Repositories that only fine-tune, convert or quantise one of these models are recognised too, because endings such as
``-Instruct`` or ``-GGUF`` are ignored.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from chipwise.core.files import read_yaml
from chipwise.core.record import Record
from chipwise.errors import AmbiguousName, UnknownName
from chipwise.model.published.families import typed

_GGUF = re.compile(r"[-.:_ ](?:ud-)?(q\d_(?:k_[sml]|k|[01])|iq4_(?:nl|xs))(?:[-.]gguf)?$")
_WEIGHTS = (  # weight format by name ending; the maker's FP8 format is in the family's file (``fp8``)
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"awq|gptq(-int4)?|w4a16|int4", "int4_g128"),
    (r"gptq-int8|int8|w8a8", "int8"),
    (r"fp8.*", "fp8"),
    (r"bf16", "bf16"),
)

_SAID = {  # notes on nicknames, by their section
    "usual": "{name} is ambiguous: taken as {found}",
    "distilled": "{name} is {found}, a smaller model distilled from DeepSeek-R1",
    "decoder": "{name}: the results are only for its decoder, {found}",
}


def names() -> list[str]:
    """The known Hugging Face ids, sorted."""
    return sorted(_configs())


def config_of(name: str) -> dict[str, Any]:
    """The config of the model ``name``: a Hugging Face id, or the part after its slash; case does not matter.

    Raises:
        UnknownName: No family lists the model.
    """
    return dict(_configs()[id_of(name)])


def id_of(name: str) -> str:
    """The known Hugging Face id that ``name`` means. Users may type ``llama3.1:8b`` or a repository's address.

    Raises:
        UnknownName: No family lists the model, or the name is ambiguous.
    """
    return _reading(name)[0]


def is_listed(name: str) -> bool:
    """Whether ``name`` is a known id, or the part after its slash; case does not matter."""
    whole, tails = _index()
    return name.strip().lower() in whole or name.strip().lower() in tails


def said_of(name: str) -> str | None:
    """A note that says which model ``name`` was taken to mean; None if the meaning is obvious.

    Raises:
        UnknownName: No family lists the model.
    """
    return _reading(name)[1]


@lru_cache(maxsize=4096)
def _reading(name: str) -> tuple[str, str | None]:
    """The id that ``name`` means, and the note that :func:`said_of` returns."""
    page = typed.page_of(name)
    wanted, tail = page.lower(), page.lower().rpartition("/")[2]
    whole, tails = _index()
    if wanted in whole:
        return whole[wanted], None
    if tail in tails:
        return tails[tail], None
    row = _nicknames().get(typed.key_of(tail))
    if row is not None:
        section, found = row
        if section == "several":
            raise AmbiguousName("model", name, found)
        return found, _SAID[section].format(name=name, found=found) if section in _SAID else None
    try:
        return typed.meant(tail, _entries(), _parameters, lambda one, other: _configs()[one] == _configs()[other]), None
    except AmbiguousName as error:
        raise AmbiguousName("model", name, error.candidates) from None
    except UnknownName as error:
        spelled = {found for other in typed.spellings(tail) if (found := _found(other)) is not None}
        if len(spelled) == 1:
            return spelled.pop(), None
        known = [each if "/" in name else each.rpartition("/")[2] for each in _configs()]
        raise typed.unknown(name, error.near, known) from None


def _found(name: str) -> str | None:
    """The id that ``name`` means, or None."""
    try:
        return _reading(name)[0]
    except UnknownName:
        return None


def without_folder(name: str) -> str:
    """A phrase for error messages that says why ``name`` is not a folder with weights."""
    if Path(name).exists():
        return "is not a folder with weights"
    try:
        known = id_of(name)
    except UnknownName:
        return "there is no such folder"
    return f"is the name of a known model, but chipwise does not contain its weights; download the folder of {known}"


def default_weights(model: str) -> str | None:
    """The published weight format of ``model``, from its name or its family; None for 16 bits.

    Not all matrices have this format: gpt-oss has MXFP4 only in experts, and no token table is quantised.

    Raises:
        UnknownName: ``model`` is neither a known name nor a known name followed by a format.
    """
    key = id_of(model)
    family = _family_of()[key]
    wanted = model.strip().lower()
    owner, _, tail = typed.page_of(wanted).rpartition("/")
    if (file := _GGUF.search(tail)) is not None:
        return file[1]
    for pattern, stored in _WEIGHTS:
        if re.search(rf"[-:_ ]({pattern})$", tail):
            own = owner in ("", key.lower().rpartition("/")[0]) and not re.search("static|dynamic", tail)
            found = str(family.get("fp8", stored)) if stored == "fp8" and own else stored
            return None if found == "bf16" else found
    return family.get("weights")


@cache
def _index() -> tuple[dict[str, str], dict[str, str]]:
    """Two mappings from lower-case names to known ids: one for ids, one for aliases and for ids without the owner."""
    whole: dict[str, str] = {}
    tails: dict[str, str] = {}
    for family in _families():
        for alias, known in family.get("aliases", {}).items():
            tails[alias.lower()] = known
    for known in _configs():
        whole[known.lower()] = known
        tails.setdefault(known.lower().rpartition("/")[2], known)
    return whole, tails


@cache
def _entries() -> tuple[typed.Entry, ...]:
    aliases = [(known, alias) for family in _families() for alias, known in family.get("aliases", {}).items()]
    return (*(typed.Entry.of(known) for known in names()), *(typed.Entry.of(*pair) for pair in aliases))


@cache
def _nicknames() -> dict[str, tuple[str, Any]]:
    """For each nickname's key: its section in ``nicknames.yaml``, and the model or models that the nickname means."""
    listed = Record.read(Path(__file__).parents[1] / "nicknames.yaml")
    sections = ((section, listed.record(section).data) for section in listed)
    return {typed.key_of(name): (section, found) for section, rows in sections for name, found in rows.items()}


@cache
def _parameters(known: str) -> float:
    from chipwise.model.published.read import from_config  # imported here because it imports this module

    return float(from_config(_configs()[known]).parameters())


@cache
def _families() -> tuple[dict[str, Any], ...]:
    return tuple(read_yaml(path) for path in sorted(Path(__file__).parent.glob("*.yaml")))


@cache
def _configs() -> dict[str, dict[str, Any]]:
    return {name: {**family["common"], **facts} for family in _families() for name, facts in family["models"].items()}


@cache
def _family_of() -> dict[str, dict[str, Any]]:
    return {name: family for family in _families() for name in family["models"]}
