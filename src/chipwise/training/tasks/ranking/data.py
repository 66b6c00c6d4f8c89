"""Interactions in the folder of a run, divided by time: one file for all trainings; exported graphs rank requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import read_mapping, storage, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.errors import DataError, MeasurementError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.ranking.choices import RankingSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.tasks.made import is_made
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.ranking.dataset import (
    RequestData,
    learnt_positions,
    load_requests,
    losses_of,
    places_of,
    save_requests,
)
from chipwise.training.tasks.ranking.sources import Interactions, InteractionsSpec, read_interactions

QUICK = 1_000  # requests that short trainings are judged on
FEWEST = 20  # requests of a part
SHOWN = 6  # requests in the report
LISTED = 5  # candidates of each
LISTS = (1, 5, 10, 20)  # lengths of lists whose recall is shown
BATCH = 32
BYTES = 8  # of an item's number


class RankingData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        spec: Where interactions come from.
        base: Where its paths start.
        folder: Where the file of requests is kept.
        ranking: What requests hold.
    """

    recipe: Mapping[str, Any] = {"batch_windows": BATCH}
    quick = QUICK

    def __init__(self, spec: InteractionsSpec, base: Path, folder: Path, ranking: RankingSpace) -> None:
        self.spec, self.base, self.folder, self.ranking = spec, base, folder, ranking

    @property
    def path(self) -> Path:
        """The file of interactions and requests."""
        return self.folder / "requests.npz"

    @property
    def facts(self) -> Path:
        """What the file was made of: source, licence, names of items and tags."""
        return self.folder / "requests.json"

    def prepare(self) -> None:
        """Reads the interactions, divides them by time and writes them once."""
        ranking = self.ranking
        wanted = digest([self.spec, ranking.items, ranking.history, ranking.candidates, ranking.tags, ranking.bag])
        if is_made(self.facts, wanted, entries="requests"):
            return
        found = read_interactions(self.spec, self.base)
        data = divided(found, self.spec, ranking)
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        save_requests(self.path, data)
        names = {"items": list(found.names), "tags": list(found.tag_names)}
        facts = {"source": found.source, "licence": found.licence, "names": names, "identity": wanted}
        write_json(self.facts, facts)  # last: the file of requests is whole

    @cached_property
    def requests(self) -> RequestData:
        """The data set."""
        return load_requests(self.path)

    def summary(self) -> Mapping[str, Any]:
        """Interactions that are learnt, requests of the other parts, source and licence."""
        facts, data = read_mapping(self.facts), self.requests
        found = {"name": self.spec.source, "source": facts["source"], "licence": facts["licence"]}
        for name, entries, each in (
            ("train", data.learnt, 1),
            ("val", len(data.validation), data.validation.shape[1]),
            ("test", len(data.test), data.test.shape[1]),
        ):
            found |= {f"entries_{name}": entries, f"bytes_{name}": entries * each * BYTES}
        return found

    def data(self, arch: ArchSpec) -> DataFile:
        """The interactions and requests."""
        return DataFile(path=str(self.path), kind="requests")

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions of a batch."""
        return BATCH * learnt_positions(self.ranking.history)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an item's number."""
        return np.full(len(rows), float(BYTES))

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """1 less NDCG@10 of the exported graph; requests of one person stand together."""
        values = losses_of(self._scores(item, split))
        if not np.isfinite(values).all():
            raise MeasurementError(f"{item.folder}: the exported model's scores are not finite")
        users = self.requests.validation_users if split == "validation" else self.requests.test_users
        _, who = np.unique(users, return_inverse=True)
        return by_person(values, who)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Some test requests with what is ranked highest, and recall of lists of several lengths with intervals."""
        data, names = self.requests, read_mapping(self.facts)["names"]["items"]
        scores = {"winner": self._scores(winner, "test")}
        if reference is not None:
            scores["baseline"] = self._scores(reference, "test")
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
        """A folder for ``AutoModel``, with the names of items and tags by number."""
        save_pretrained(item.design.arch, item.weights, None, folder, dict(files))
        write_json(folder / "items.json", read_mapping(self.facts)["names"])
        np.save(folder / "tags.npy", self.requests.tags, allow_pickle=False)

    def _scores(self, item: Exported, split: Split) -> NDArray[np.float32]:
        """Scores (m, candidates) by the exported graph, one request at a time as it serves them."""
        from chipwise.deploy.runtimes.onnxruntime import OnnxRanker

        path = item.folder / "judged.onnx"
        with storage(path):
            export(item.design, item.weights, path)
        try:
            session = OnnxRanker(path)
            return np.stack([session.prefill(one[None])[0].copy() for one in self.requests.part(split)])
        finally:
            path.unlink(missing_ok=True)


def recalls(places: NDArray[np.int64], users: NDArray[np.int64]) -> list[dict[str, float]]:
    """Share of requests whose right item is among the first, for several lengths, with standard errors over people."""
    _, who = np.unique(users, return_inverse=True)
    rows = []
    for length in LISTS:
        found = by_person((places <= length).astype(float), who)
        rows.append({"length": length, "recall": found.loss, "std_error": found.std_error or 0.0})
    return rows


def by_person(values: Float64Array, who: NDArray[np.intp]) -> Losses:
    """Losses of requests (m,) summed over the people who asked, numbered from 0 on."""
    sums: Float64Array = np.bincount(who, values).astype(np.float64)
    return Losses(values=sums, sizes=np.bincount(who).astype(np.float64))


def divided(found: Interactions, spec: InteractionsSpec, ranking: RankingSpace) -> RequestData:
    """Interactions divided by time, and requests of the later parts.

    Raises:
        SpecError: The data has other items or tags than the space.
        DataError: Too few requests have a history.
    """
    items, bag = len(found.names) - 1, found.tags.shape[1]
    if items != ranking.items:
        raise SpecError(f"the data has {items} items, not {ranking.items}", field="space.ranking.items")
    if ranking.bag and (ranking.bag, ranking.tags) != (bag, len(found.tag_names) - 1):
        raise SpecError(
            f"the data has {len(found.tag_names) - 1} tags, at most {bag} of an item; "
            f"not {ranking.tags} and {ranking.bag}",
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
                f"the {name} part has {len(parts[name])} requests after {spec.least_history} items; it needs {FEWEST}"
            )
    tags = found.tags if ranking.bag else found.tags[:, :0]
    return RequestData(users=found.users, items=found.items, tags=tags, learnt=learnt, history=ranking.history, **parts)


def _requests(
    found: Interactions, spec: InteractionsSpec, ranking: RankingSpace, first: int, last: int, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Requests (m, history + candidates) of interactions ``first`` to ``last``, and who asked.

    Candidates beside the right one are drawn uniformly from the items that the person has not met up to then.
    """
    random = np.random.default_rng([seed, 1])
    order = np.argsort(found.users[:last], kind="stable")
    begins = np.searchsorted(found.users[:last][order], found.users[:last])
    of_user = found.items[:last][order]
    place = np.empty(last, np.int64)  # of each interaction in ``of_user``
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
            raise DataError(f"{ranking.candidates - 1} candidates are drawn; {len(others)} items are left to draw from")
        row[ranking.history] = right
        row[ranking.history + 1 :] = random.choice(others, ranking.candidates - 1, replace=False)
    return rows, found.users[chosen]
