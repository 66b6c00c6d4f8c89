"""Trainings kept for later runs: a round trip, nothing twice, and damaged files refused by name."""

from __future__ import annotations

import json

import pytest

from chipwise.core.digest import plain
from chipwise.design.run.past import PastTraining, PastTrainings
from chipwise.errors import SpecError


def one(tokens: int = 1_000, seed: int = 0, **changes: object) -> PastTraining:
    fields = {"data": "abc", "task": "text", "run": "clinic", "added": "2026-11-27T00:00:00Z", "loss": 1.2}
    fields["choices"] = {"d_model": 64, "layers": [{"heads": 2}]}
    return PastTraining(**fields | changes, tokens=tokens, seed=seed)


@pytest.fixture
def store(tmp_path) -> PastTrainings:
    return PastTrainings(tmp_path / "home" / "trainings.jsonl")


def test_nothing_is_stored_at_first(store) -> None:
    assert store.entries() == []


def test_what_is_added_is_read_again_and_only_once(store) -> None:
    assert store.add([one(), one(tokens=2_000), one()]) == 2
    assert store.add([one(), one(seed=1)]) == 1
    assert store.entries() == [one(), one(tokens=2_000), one(seed=1)]


def test_an_export_is_imported_elsewhere(store, tmp_path) -> None:
    store.add([one(), one(tokens=2_000)])
    assert store.export(tmp_path / "mine.jsonl") == 2
    other = PastTrainings(tmp_path / "theirs.jsonl")
    other.add([one()])
    assert other.import_(tmp_path / "mine.jsonl") == 1
    assert other.entries() == store.entries()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "chipwise.past_training/9"}, "chipwise.past_training/9"),
        ({"loss": float(-1)}, "loss"),
        ({"tokens": 0}, "tokens"),
        ({"weights": "w.bin"}, "weights"),
    ],
)
def test_a_line_that_is_none_is_named_and_nothing_is_imported(store, tmp_path, change, words) -> None:
    file = tmp_path / "bad.jsonl"
    good = plain(one()) | {"schema": "chipwise.past_training/1"}
    file.write_text(json.dumps(good) + "\n" + json.dumps(good | change) + "\n")
    with pytest.raises(SpecError, match=f"line 2.*{words}"):
        store.import_(file)
    assert store.entries() == []


def test_a_torn_line_of_the_store_says_what_to_do(store) -> None:
    store.add([one()])
    store.path.write_text(store.path.read_text()[:-20])
    with pytest.raises(SpecError, match=r"trainings\.jsonl, line 1: .*; delete the file with chipwise prior reset"):
        store.entries()


def test_reset_deletes_everything_and_may_be_repeated(store) -> None:
    store.add([one()])
    store.reset()
    store.reset()
    assert store.entries() == []
