"""Interactions split by time, in one file for all training runs; exported graphs rank one request at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.record import Record
from chipwise.errors import DataError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.ranking.choices import RankingSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import Split
from chipwise.training.tasks.array_data import ArrayData
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.ranking.dataset import BYTES, RequestData, learnt_positions, places_of
from chipwise.training.tasks.ranking.sources import Interactions, InteractionsSpec, read_interactions

FEWEST = 20  # requests in a part
SHOWN = 6  # requests shown in the report
LISTED = 5  # candidates shown per request
LISTS = (1, 5, 10, 20)  # list lengths whose recall is shown
BATCH = 32


class RankingData(ArrayData[InteractionsSpec, RankingSpace, RequestData]):
    """Ranking requests; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": BATCH}
    quick = 1_000  # requests in an early evaluation
    spec_type, part, dataset, kind, name = InteractionsSpec, "ranking", RequestData, "requests", "requests"
    identifying = ("items", "history", "candidates", "tags", "bag")

    def make(self) -> tuple[RequestData, Mapping[str, object]]:
        """Reads the interactions, and splits them by time; the facts contain the names of items and tags."""
        found = read_interactions(self.spec, self.base)
        names = {"items": list(found.names), "tags": list(found.tag_names)}
        facts = {"source": found.source, "licence": found.licence, "names": names}
        return divided(found, self.spec, self.inputs), facts

    def step_tokens(self, arch: ArchSpec) -> int:
        """Number of positions in a batch."""
        return BATCH * learnt_positions(self.inputs.history)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an item id."""
        return np.full(len(rows), float(BYTES))

    def alike(self, split: Split) -> NDArray[np.int64]:
        """User ids: requests of one user form a group."""
        users = self.arrays.validation_users if split == "validation" else self.arrays.test_users
        return np.unique(users, return_inverse=True)[1]

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test requests with the items ranked first, and recall at several list lengths with intervals."""
        data, names = self.arrays, Record.read(self.facts).record("names").sequence("items", str)
        scores, _ = self.answered(winner, reference)
        chosen = np.unique(np.linspace(0, len(data.test) - 1, SHOWN).astype(int))
        shown = []
        for row in chosen.tolist():
            history, candidates = data.test[row, : data.history], data.test[row, data.history :]
            said = {}
            for who, found in scores.items():
                best = np.lexsort((np.arange(len(candidates)) == 0, -found[row]))[:LISTED]
                place = int(places_of(found[row, None])[0])
                said[who] = {"list": [names[item] for item in candidates[best].tolist()], "place": place}
            shown.append(
                {"history": [names[item] for item in history[-LISTED:].tolist() if item], "next": names[candidates[0]]}
                | said
            )
        return {
            "requests": shown,
            "candidates": int(data.test.shape[1] - data.history),
            "recall": {who: recalls(places_of(found), data.test_users) for who, found in scores.items()},
        }

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes a folder for ``AutoModel``, with the names of items and tags by id, and the tags of each item."""
        super().ship(item, folder, files)
        np.save(folder / "tags.npy", self.arrays.tags, allow_pickle=False)

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of items and tags."""
        return {"items.json": Record.read(self.facts).record("names").data}


def recalls(places: NDArray[np.int64], users: NDArray[np.int64]) -> list[dict[str, float]]:
    """Recall at several list lengths: share of requests whose right item is listed, with standard errors over users."""
    _, who = np.unique(users, return_inverse=True)
    rows = []
    for length in LISTS:
        found = Losses.of((places <= length).astype(float), np.ones(len(places)), who)
        rows.append({"length": length, "recall": found.loss, "std_error": found.std_error or 0.0})
    return rows


def divided(found: Interactions, spec: InteractionsSpec, ranking: RankingSpace) -> RequestData:
    """Splits interactions by time, and builds validation and test requests.

    Raises:
        SpecError: The numbers of items or tags in the space differ from those in the data.
        DataError: Too few requests have a long enough history.
    """
    items, bag = len(found.names) - 1, found.tags.shape[1]
    if items != ranking.items:
        raise SpecError(f"must be {items}, the number in the data, not {ranking.items}", field="space.ranking.items")
    if ranking.bag and (ranking.bag, ranking.tags) != (bag, len(found.tag_names) - 1):
        raise SpecError(
            f"the data has {len(found.tag_names) - 1} tags and at most {bag} per item; set `tags` and "
            f"`bag` to these numbers, not to {ranking.tags} and {ranking.bag}",
            field="space.ranking.tags",
        )
    count = len(found.items)
    tests = count - round(spec.test_share * count)
    learnt = tests - round(spec.validation_share * count)
    parts = {}
    for part, (name, first, last) in enumerate((("validation", learnt, tests), ("test", tests, count))):
        parts[name], parts[f"{name}_users"] = _requests(found, spec, ranking, first, last, seed=part)
        if len(parts[name]) < FEWEST:
            raise DataError(
                f"the {name} part has {len(parts[name])} requests with at least {spec.least_history} earlier items of "
                f"the user; it needs {FEWEST}"
            )
    tags = found.tags if ranking.bag else found.tags[:, :0]
    return RequestData(users=found.users, items=found.items, tags=tags, learnt=learnt, history=ranking.history, **parts)


def _requests(
    found: Interactions, spec: InteractionsSpec, ranking: RankingSpace, first: int, last: int, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests (m, history + candidates) for the interactions from ``first`` to ``last``, and their users.

    The first candidate is the item of the interaction. The others are sampled uniformly from the items with which the
    user has not interacted before.
    """
    random = np.random.default_rng([seed, 1])
    order = np.argsort(found.users[:last], kind="stable")
    begins = np.searchsorted(found.users[:last][order], found.users[:last])
    of_user = found.items[:last][order]
    place = np.empty(last, np.int64)  # position of each interaction in ``of_user``
    place[order] = np.arange(last)
    possible = np.flatnonzero((np.arange(last) >= first) & (place - begins >= spec.least_history))
    chosen = random.permutation(possible)[: spec.requests]
    rows = np.zeros((len(chosen), ranking.history + ranking.candidates), np.int64)
    for row, number in zip(rows, chosen.tolist(), strict=True):
        met = of_user[begins[number] : place[number]]
        kept = met[-ranking.history :]
        row[ranking.history - len(kept) : ranking.history] = kept
        right = found.items[number]
        free = np.ones(ranking.items + 1, bool)
        free[0] = free[met] = free[right] = False
        others = np.flatnonzero(free)
        if len(others) < ranking.candidates - 1:
            raise DataError(f"{ranking.candidates - 1} candidates are needed, but only {len(others)} other items exist")
        row[ranking.history] = right
        row[ranking.history + 1 :] = random.choice(others, ranking.candidates - 1, replace=False)
    return rows, found.users[chosen]
