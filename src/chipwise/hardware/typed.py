"""Finds the chip for an informal name such as ``4070``, ``m4max`` or ``rtx 3060 12gb``. Every typed word must match.

A chip fits if each typed word is in its name or one of its aliases, is its vendor or a word such as ``gpu``, or is its
memory size. Only words of the product line (``rtx``, ``core i7``) may be missing: ``4070`` does not match ``4070 ti``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core import files
from chipwise.core.record import Record
from chipwise.core.typed import alike, left_of, memory_bytes, words_of
from chipwise.errors import AmbiguousName, UnknownName

DATA = Path(__file__).parent / "data"
LINES = frozenset({
    "apple", "arc", "core", "epyc", "geforce", "google", "gtx", "i3", "i5", "i7", "i9", "instinct", "intel", "jetson",
    "radeon", "raspberry", "rtx", "rx", "ryzen", "tesla", "threadripper", "xeon",
})  # fmt: skip
MAKERS: Mapping[str, frozenset[str]] = {  # words for each vendor and its brands, by the vendor's name in the sheets
    "NVIDIA": frozenset({"nvidia", "geforce"}),
    "AMD": frozenset({"amd", "radeon", "instinct"}),
    "Intel": frozenset({"intel"}),
    "Apple": frozenset({"apple", "silicon", "mac"}),
    "Qualcomm": frozenset({"qualcomm"}),
    "Google": frozenset({"google"}),
    "MediaTek": frozenset({"mediatek"}),
    "Samsung": frozenset({"samsung"}),
    "Amazon": frozenset({"aws", "amazon"}),
    "Rockchip": frozenset({"rockchip"}),
}
PLAIN = frozenset({"card", "chip", "desktop", "edition", "graphics", "laptop", "processor", "soc"})
APPLE_MACHINES = (("macbook", "pro"), ("macbook", "air"), ("mac", "studio"), ("mac", "mini"), ("mac", "pro"), ("imac",),
                  ("macbook",))  # fmt: skip
MOST_SUGGESTED = 5
AS_ROUNDED = 0.03  # relative tolerance on memory, which may be counted in powers of ten or of two
_SCREEN = re.compile(r"\b1[3-6][- ]?inch\b")


@dataclass(frozen=True, slots=True)
class Entry:
    """A chip's name, split into words."""

    stem: str
    words: tuple[str, ...]
    vendor: str
    kind: str


@dataclass(frozen=True, slots=True)
class Meant:
    """A chip, and the typed memory size in bytes if it differs from the data sheet's."""

    stem: str
    memory_bytes: float | None = None


def names() -> list[str]:
    """The names of all bundled devices, sorted."""
    return sorted(stems())


@functools.cache
def stems() -> frozenset[str]:
    """The names of all bundled devices, as a set."""
    return frozenset(path.stem for path in DATA.glob("*.yaml"))


def key_of(name: str) -> str:
    """The look-up key of ``name``: lower case, with one dash between words."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


@functools.cache
def _heads() -> dict[str, Record]:
    """The fields in each device file before its first blank line; the names of the device are among them."""
    heads = {}
    for path in sorted(DATA.glob("*.yaml")):
        head, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
        heads[path.stem] = Record.of(files.parse_yaml(head, name=str(path)), file=str(path))
    return heads


@functools.cache
def aliases() -> dict[str, str]:
    """Maps the look-up key of each alias to the name of its device."""
    return {key_of(alias): stem for stem, head in _heads().items() for alias in head.sequence("aliases", str)}


@functools.cache
def _entries() -> tuple[Entry, ...]:
    return tuple(
        Entry(stem, words_of(each), head.get("vendor", str), head.get("kind", str))
        for stem, head in _heads().items()
        for each in (stem, *head.sequence("aliases", str))
    )


@functools.cache
def _products() -> Mapping[tuple[str, ...], object]:
    """Maps the words of a product, such as a phone, to its chip or to a list of possible chips."""
    products = files.read_yaml(DATA.parent / "products.yaml")
    return {tuple(sorted(words_of(product))): chips for product, chips in products.items()}


def meant(name: str, memory_of: Callable[[str], float]) -> Meant:
    """Finds the chip for ``name``.

    Args:
        name: The typed name.
        memory_of: Returns a chip's memory in bytes.

    Raises:
        AmbiguousName: The name fits several chips.
        UnknownName: The name fits no chip; the message lists the most similar names.
    """
    words = words_of(_SCREEN.sub(" ", name.lower()))
    sold, entries = _products(), _entries()
    typed_memory = [word for word in words if memory_bytes(word) is not None]
    found = sold.get(tuple(sorted(words))) or sold.get(tuple(sorted(left_of(words, typed_memory))))
    if isinstance(found, list):
        raise AmbiguousName("device", name, found)
    if isinstance(found, str):
        named = [word for word in words_of(found) if not typed_memory or memory_bytes(word) is None]
        words = (*named, *typed_memory)
    words = _without_machine(words)
    fitting: dict[Meant, int] = {}
    for entry in entries:
        chip = _fits(words, entry, memory_of)
        if chip is not None:
            missing = len(left_of(entry.words, words))
            fitting[chip] = min(missing, fitting.get(chip, missing))
    best = [chip for chip, missing in fitting.items() if missing == min(fitting.values())]
    if len(best) == 1:
        return best[0]
    if best:
        raise AmbiguousName("device", name, sorted(chip.stem for chip in best))
    plain = tuple(left_of(words, [word for word in words if memory_bytes(word) is not None]))
    for entry in entries if plain != tuple(sorted(words)) else ():
        if _fits(plain, entry, memory_of) is not None:
            held = memory_of(entry.stem) / 1e9
            said = f"{entry.stem} has {held:.4g} GB, and no other size is known; pass your own device file"
            raise UnknownName("device", name, (), said=said)
    wider = {entry.stem for entry in entries if not left_of(plain, entry.words)}
    others = alike(plain, {entry.stem: entry.words for entry in entries})
    near = list(dict.fromkeys([*sorted(wider, key=lambda each: (len(each), each)), *others]))[:MOST_SUGGESTED]
    raise UnknownName("device", name, [*names(), *aliases()], listed_by="chipwise devices", near=near)


def _without_machine(words: tuple[str, ...]) -> tuple[str, ...]:
    """Replaces the name of a Mac, such as MacBook Pro, by ``apple``, if ``words`` contains other words too."""
    for machine in APPLE_MACHINES:
        for i in range(len(words) - len(machine)):
            if words[i : i + len(machine)] == machine:
                return (*words[:i], "apple", *words[i + len(machine) :])
        if len(words) > len(machine) and words[-len(machine) :] == machine:
            return (*words[: -len(machine)], "apple")
    return words


def _fits(words: Sequence[str], entry: Entry, memory_of: Callable[[str], float]) -> Meant | None:
    """The chip of ``entry``, if ``entry`` contains every typed word and all its other words are product-line words."""
    allowed = MAKERS.get(entry.vendor, frozenset()) | (PLAIN - {"laptop"}) | {"cpu" if entry.kind == "cpu" else "gpu"}
    words = ["laptop" if word == "mobile" else word for word in words]
    missing = left_of(entry.words, words)
    extra = [word for word in left_of(words, entry.words) if word not in allowed]
    if any(word not in LINES and not (word in "3579" and "ryzen" in entry.words) for word in missing):
        return None
    if missing and not any(any(c.isdigit() for c in word) for word in words if memory_bytes(word) is None):
        return None
    memories = [word for word in extra if memory_bytes(word) is not None]
    if len(memories) != len(extra) or len(memories) > 1:
        return None
    if not memories:
        return Meant(entry.stem)
    return _with_memory(entry, memories[0], memory_of(entry.stem))


def _with_memory(entry: Entry, word: str, held: float) -> Meant | None:
    """The chip with the typed memory size; None if the chip cannot have this size.

    CPUs and systems on a chip, except NVIDIA's, can have less memory than their data sheet states. The sizes in
    ``FEWER_CORES`` are excluded.
    """
    asked = memory_bytes(word)
    assert asked is not None
    if any(abs(size / held - 1) <= AS_ROUNDED for size in asked):
        return Meant(entry.stem)
    several = entry.kind in ("cpu", "soc") and entry.vendor != "NVIDIA"
    binned = asked[0] / 1e9 in FEWER_CORES.get(entry.stem, ())
    return Meant(entry.stem, asked[0]) if several and not binned and asked[0] < held else None


FEWER_CORES: Mapping[str, tuple[float, ...]] = {"apple-m3-max": (36, 96), "apple-m4-max": (36,)}
"""Memory sizes (GB) that Apple sells only with the version that has fewer GPU cores and slower memory."""
