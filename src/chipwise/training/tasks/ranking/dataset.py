"""Data set of ranking requests: a model learns to predict the next item of a history, and ranks candidates.

Training uses many positions of a history at once: the candidates at a position are the next item and random other
items, and they attend to the history up to that position. In serving, only the last position has candidates.

References:
    Cross entropy over sampled candidates: Klenitskiy and Vasilev 2023, Turning Dross Into Gold Loss, arXiv:2309.07602.
    Measures of ranked lists: Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR Techniques.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.digest import digest
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.training.data.arrays import ALL, ArrayDataset
from chipwise.training.data.dataset import Split, fitting
from chipwise.training.data.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


TOP = 10  # k of NDCG@k
PLACES = 16  # positions of a history that a batch trains
DRAWN = 7  # sampled candidates per position, besides the right one
BYTES = 8  # bytes of an item id
SIZES = ("learnt", "history")  # fields that are single numbers


@dataclass(frozen=True, kw_only=True)
class RequestData(ArrayDataset):
    """Interactions in order of time, and the requests for evaluation.

    Attributes:
        users: User ids, (n,).
        items: Item ids from 1, (n,).
        tags: Tag ids of each item, (items + 1, bag).
        learnt: Number of training interactions, which are the earliest ones.
        validation: Requests (m, history + candidates) of item ids, the right candidate first; short histories are
            padded with 0.
        test: Requests of the part that is not used to select models.
        validation_users: User of each validation request, (m,).
        test_users: User of each test request.
        history: Number of items in a request's history.
    """

    rows: ClassVar[int] = 64
    users: NDArray[np.int64]
    items: NDArray[np.int64]
    tags: NDArray[np.int64]
    learnt: int
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    validation_users: NDArray[np.int64]
    test_users: NDArray[np.int64]
    history: int

    @property
    def identity(self) -> Sequence[object]:
        """Values that identify the data: sizes, and a digest of the first interactions and validation requests."""
        first = digest([self.users[:4096].tolist(), self.items[:4096].tolist(), self.validation[:64].tolist()])
        return ["requests", len(self.items), self.learnt, *self.validation.shape, *self.tags.shape, first]

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model's items, tags or histories differ."""
        stem = fitting(arch.stem, RankingStem, f"{arch.name} does not rank candidates")
        found, needed = (stem.items, stem.history, stem.bag), (len(self.tags) - 1, self.history, self.tags.shape[1])
        for name, has, wants in zip(("items", "items of history", "tags of an item"), found, needed, strict=True):
            if has != wants:
                raise InputError(f"the model has {has} {name}, the data has {wants}")

    def example_tokens(self, arch: ArchSpec) -> int:
        """Number of positions in one training example: its history and candidates."""
        return learnt_positions(self.history)

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Batch number ``number``: ids of items and tags, trained positions (places), and weights.

        Ids have the shape (rows, history + places · candidates, 1 + bag). Places (rows, places) are positions in the
        history, the same in all rows. Weights (rows, places) are 0 at the padding of short histories.
        """
        import torch

        random = np.random.default_rng([seed, number])
        followed = self._followed
        ends = followed[random.integers(0, len(followed), recipe.batch_windows)]
        windows = self._windows(ends)  # (rows, history + 1)
        places = np.sort(random.choice(self.history, min(PLACES, self.history), replace=False)) + 1
        places[-1] = self.history  # the newest item is always trained
        right = windows[:, places]
        shape = (*right.shape, DRAWN)
        drawn = random.integers(1, len(self.tags), shape)
        candidates = np.concatenate((right[..., None], drawn), axis=2).reshape(len(ends), -1)
        ids = self.with_tags(np.concatenate((windows[:, :-1], candidates), axis=1))
        weights = (windows[:, places - 1] > 0).astype(np.float32)
        placed = np.broadcast_to(places, right.shape).copy()
        return torch.from_numpy(ids), torch.from_numpy(placed), torch.from_numpy(weights)

    @cached_property
    def _by_user(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Training items, grouped by user and in order of time, and each item's index within its group."""
        users, items = self.users[: self.learnt], self.items[: self.learnt]
        order = np.argsort(users, kind="stable")
        begins = np.searchsorted(users[order], users[order])
        return items[order], np.arange(len(order)) - begins

    @cached_property
    def _followed(self) -> NDArray[np.int64]:
        """Indices of the grouped training items that have a predecessor."""
        return np.flatnonzero(self._by_user[1] > 0)

    def _windows(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ``history + 1`` items up to each of ``ends``, padded with 0 before a user's first item."""
        items, before = self._by_user
        back = np.arange(self.history, -1, -1)
        places = ends[:, None] - back
        return np.where(back <= before[ends][:, None], items[np.maximum(places, 0)], 0)

    def with_tags(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Appends the tags of items (…,) to their ids, (…, 1 + bag)."""
        return np.concatenate((items[..., None], self.tags[items]), axis=-1)

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean cross entropy in nats of the next item among the candidates."""
        import torch

        ids, places, weights = batch
        count = (ids.shape[1] - self.history) // places.shape[1]
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            scores = model(ids, places[0].repeat_interleave(count))
        nats = -torch.log_softmax(scores.float().view(*places.shape, count), dim=-1)[..., 0]
        return (nats * weights).sum() / weights.sum().clamp(min=1)

    def part(self, split: Split) -> NDArray[np.int64]:
        """Requests (m, history + candidates) of a part."""
        return self.validation if split == "validation" else self.test

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yields two numbers for each part: entries, and bytes of their item ids.

        Entries are interactions in the training part, and requests in the other parts.
        """
        yield self.learnt, self.learnt * BYTES
        for part in (self.validation, self.test):
            yield len(part), part.size * BYTES

    def count(self, split: Split) -> int:
        """Number of requests in a part."""
        return len(self.part(split))

    def examples(self, split: Split, rows: slice = ALL) -> tuple[AnyArray, ...]:
        """Requests (m, history + candidates, 1 + bag)."""
        return (self.with_tags(self.part(split)[rows]),)

    def metric(
        self, outputs: NDArray[np.floating], split: Split, rows: slice = ALL
    ) -> tuple[Float64Array, Float64Array]:
        """1 minus NDCG@10 of each request."""
        return losses_of(outputs), np.ones(len(outputs))

    def fields(self) -> Mapping[str, AnyArray]:
        """All attributes as arrays."""
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> Self:
        """Builds the data set from the arrays of a file."""
        held = {each.name: file[each.name].astype(np.int64) for each in fields(cls) if each.name not in SIZES}
        return cls(**held, learnt=int(file["learnt"]), history=int(file["history"]))


def learnt_positions(history: int) -> int:
    """Number of positions in one training example: its history, and the candidates at the trained positions."""
    return history + min(PLACES, history) * (1 + DRAWN)


def places_of(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Rank, from 1, of the first candidate in each row of scores (m, C); tied candidates are placed before it."""
    before: NDArray[np.int64] = (scores[:, 1:] >= scores[:, :1]).sum(axis=1)
    return before + 1


def losses_of(scores: NDArray[np.floating]) -> Float64Array:
    """1 minus NDCG@10 of each request, (m,), where the first candidate is right; NaN if scores are not finite.

    With one right candidate, NDCG@10 is 1 / log2(1 + rank) for ranks up to ten, and 0 for others.
    """
    places = places_of(scores)
    lost = 1 - np.where(places <= TOP, 1 / np.log2(1.0 + places), 0.0)
    return np.where(np.isfinite(scores).all(axis=1), lost, np.nan)
