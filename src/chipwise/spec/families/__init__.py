"""Configs of well-known models, one file a family, as their ``config.json`` states them.

A repository that only tunes, converts or quantises one of them is known too: its name is read without those endings.
"""

from __future__ import annotations

import math
import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from chipwise.core.errors import UnknownName
from chipwise.core.files import read_yaml

# Parts of repository names for how a model was tuned or stored, which do not change what it computes.
_TUNED = re.compile(r"-(instruct|it|pt|chat|base|hf|thinking|reasoning)(?=-|$)")
_FILE = re.compile(r"([-.](gguf|mlx|(ud-)?i?q\d(_[a-z0-9]+)*|\d+bit))+$")  # endings of files of llama.cpp and MLX
_GGUF = re.compile(r"[-.](?:ud-)?(q\d_(?:k_[sml]|k|[01])|iq4_(?:nl|xs))(?:[-.]gguf)?$")
_STORED = re.compile(
    r"-(\d{4}|fp8([-_](dynamic|block|static([-_]pertensor)?))?|nvfp4|fp4|mxfp4|awq|gptq(-int[48])?|int[48]|w8a8|w4a16|bf16)$"
)
_WEIGHTS = (  # weight format by ending; the maker's own FP8 is the one in the family's file (``fp8``)
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"awq|gptq(-int4)?|w4a16|int4", "int4_g128"),
    (r"gptq-int8|int8|w8a8", "int8"),
    (r"fp8.*", "fp8"),
    (r"bf16", "bf16"),
)

_FAMILY = re.compile(r"[a-z]{3,}")
_SIZE = re.compile(
    r"(?<![a-z0-9.])(?:(?P<count>\d+)x)?(?P<effective>e)?(?P<size>\d+(?:\.\d+)?)(?P<unit>[bm])(?![a-z0-9])"
)
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
MOST_UNLIKE = 3.0  # times as many parameters: what a config may differ by that stands for a model that is not known


def names() -> list[str]:
    """The Hugging Face ids that are known, sorted."""
    return sorted(_configs())


def config_of(name: str) -> dict[str, Any]:
    """The config of the model called ``name``: its Hugging Face id, or the part after the slash, in any case.

    Raises:
        UnknownName: No family lists it.
    """
    return dict(_configs()[id_of(name)])


def id_of(name: str) -> str:
    """The known Hugging Face id that ``name`` stands for.

    Raises:
        UnknownName: No family lists it.
    """
    wanted = name.strip().lower()
    whole, tails, bare = _index()
    tail = wanted.rpartition("/")[2]
    if wanted in whole:
        return whole[wanted]
    for table, key in ((tails, tail), (bare, _bare(tail))):
        if key in table:
            return table[key]
    known = [each if "/" in name else each.rpartition("/")[2] for each in _configs()]
    raise UnknownName("model", name, known, listed_by="chipwise models")


def without_folder(name: str) -> str:
    """What is wrong with ``name``, where a folder with weights is wanted: half a sentence of an error."""
    if Path(name).exists():
        return "is no folder with weights"
    try:
        known = id_of(name)
    except UnknownName:
        return "there is no such folder"
    return f"is the name of a known model, whose weights do not come with chipwise; download the folder of {known}"


def nearest(name: str) -> str | None:
    """The known id most like ``name``: of its family and about its size; None where the name tells no size or family.

    A size is read as names write it: ``7B``, ``270M``, ``8x7B``, ``30B-A3B`` (of which 3 are active), ``E4B``.
    """
    tail = name.rpartition("/")[2].lower()
    wanted, family = _sizes_in(tail), _FAMILY.match(tail)
    if wanted is None or family is None:
        return None
    alike: list[tuple[float, str]] = []
    for known in _configs():
        other = known.rpartition("/")[2].lower()
        sizes = _sizes_in(other)
        if sizes is None or not other.startswith(family[0]):
            continue
        whole, active = (abs(math.log(a / b)) for a, b in zip(wanted, sizes, strict=True))
        if max(whole, active) <= math.log(MOST_UNLIKE):
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tail, other, strict=False)))
            alike.append((whole + active - 0.5 * same / len(tail), known))  # as close a generation as there is
    return min(alike)[1] if alike else None


def _sizes_in(tail: str) -> tuple[float, float] | None:
    """Parameters in all and those active for a token, in billions, as a name tells them."""
    found = _SIZE.search(tail)
    if found is None:
        return None
    whole = float(found["count"] or 1) * float(found["size"]) * (1e-3 if found["unit"] == "m" else 1.0)
    active = _ACTIVE.search(tail)
    if found["effective"]:
        return 2 * whole, whole  # Gemma's: half of the weights are a table of embeddings for every layer
    if active is None:
        return (whole, 0.27 * whole) if found["count"] else (whole, whole)  # two of eight experts
    return whole, float(active[1])


def default_weights(model: str) -> str | None:
    """The format that the weights of ``model`` ship in, from its name or its family; None for 16 bits.

    gpt-oss keeps only its experts in MXFP4, and no quantised checkpoint its token table.

    Raises:
        UnknownName: Neither a known model nor a name that ends in a format of a known one.
    """
    key = id_of(model)
    family = _family_of()[key]
    wanted = model.strip().lower()
    owner, _, tail = wanted.rpartition("/")
    if (file := _GGUF.search(tail)) is not None:
        return file[1]
    for pattern, stored in _WEIGHTS:
        if re.search(rf"-({pattern})$", tail):
            own = owner in ("", key.lower().rpartition("/")[0]) and not re.search("static|dynamic", tail)
            found = str(family.get("fp8", stored)) if stored == "fp8" and own else stored
            return None if found == "bf16" else found
    return family.get("weights")


def _bare(tail: str) -> str:
    """``tail`` without the endings that change no architecture, and without a doubled maker's name."""
    tail = _FILE.sub("", tail.replace(" ", "-"))
    while (shorter := _STORED.sub("", tail)) != tail:
        tail = shorter
    return _TUNED.sub("", tail).removeprefix("nvidia_").removeprefix("meta-").removeprefix("nvidia-")


@cache
def _index() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Known ids by their lower-case whole, by the part after the slash, and by that without its endings."""
    whole: dict[str, str] = {}
    tails: dict[str, str] = {}
    bare: dict[str, str] = {}
    for family in _families():
        for alias, known in family.get("aliases", {}).items():
            tails[alias.lower()] = known
            bare[_bare(alias.lower())] = known
    for known in _configs():
        tail = known.lower().rpartition("/")[2]
        whole[known.lower()] = known
        tails.setdefault(tail, known)
        bare.setdefault(_bare(tail), known)
    return whole, tails, bare


@cache
def _families() -> tuple[dict[str, Any], ...]:
    return tuple(read_yaml(path) for path in sorted(Path(__file__).parent.glob("*.yaml")))


@cache
def _configs() -> dict[str, dict[str, Any]]:
    return {name: {**family["common"], **facts} for family in _families() for name, facts in family["models"].items()}


@cache
def _family_of() -> dict[str, dict[str, Any]]:
    return {name: family for family in _families() for name in family["models"]}
