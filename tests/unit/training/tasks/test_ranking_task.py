"""Ranking as a task: people who go around a circle of items, read from Parquet; measures and divisions by pencil."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.fields import build
from chipwise.deploy.export.hf import load_pretrained
from chipwise.errors import DataError, InputError, SpecError, StudyError
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.protocol import task_named
from chipwise.training.tasks.ranking import sources
from chipwise.training.tasks.ranking.data import recalls
from chipwise.training.tasks.ranking.dataset import RequestData, losses_of, places_of
from chipwise.training.tasks.ranking.sources import InteractionsSpec, read_movielens, read_parquet
from chipwise.training.tasks.ranking.task import RANKING

ITEMS, PEOPLE, EACH = 24, 40, 16


def written() -> Path:
    """A Parquet file of people who go around a circle of items, one step after the other, in turns."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder, random = Path(tempfile.mkdtemp(prefix="chipwise-")), np.random.default_rng(0)
    starts = random.integers(0, ITEMS, PEOPLE)
    who, when = np.tile(np.arange(PEOPLE), EACH), np.arange(PEOPLE * EACH)
    item = (starts[who] + when // PEOPLE) % ITEMS
    columns = {
        "user_id": [f"person {i}" for i in who],
        "item_id": [f"item {i:02}" for i in item],
        "timestamp": when.astype(float),
        "kinds": [["even", "odd"][i % 2 : i % 2 + 1] + (["first"] if i == 0 else []) for i in item],
    }
    parquet.write_table(pa.table(columns), folder / "walks.parquet")
    return folder


BASE = written()
DATA: dict[str, Any] = {"source": "parquet", "path": "walks.parquet", "tags": "kinds", "least_history": 2}
SPACE: dict[str, Any] = {
    "ranking": {
        "items": ITEMS,
        "history": 4,
        "candidates": 6,
        "tags": 3,
        "bag": 2,
        "mixing": ["attention", "hstu"],
        "table": ["full", "w8"],
        "score": ["similarity", "scores"],
    },
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [8],
    "layers": "alike",
    "layer": {"heads": [1, 2], "ffn": ["relu", "none"], "ffn_width": [16, 32]},
}


class TestRanking(TaskSuite):
    """Models of requests of four items and six candidates."""

    task = RANKING
    base = BASE
    data: ClassVar[dict[str, Any]] = DATA
    space: ClassVar[dict[str, Any]] = SPACE


def opened(folder: Path, **changes: Any) -> RequestData:
    """The data set of the file of walks."""
    spec = build(SpaceSpec, SPACE | changes.pop("space", {}))
    found = RANKING.open(DATA | changes, base=BASE, folder=folder, space=spec)
    found.prepare()
    return RequestData.load(found.path)  # type: ignore[attr-defined]


def test_the_table_of_tasks_names_ranking() -> None:
    assert task_named("ranking") is RANKING


def test_gains_by_pencil() -> None:
    """The right candidate comes first in each row; places 1, 3 and 12: 1, 1/log2 4 and nothing."""
    scores = np.zeros((3, 12))
    scores[0, 0] = 1
    scores[1, :3] = (2, 3, 4)
    scores[2] = np.arange(12)
    np.testing.assert_array_equal(places_of(scores), [1, 3, 12])
    np.testing.assert_allclose(losses_of(scores), [0, 1 - 0.5, 1])


def test_a_model_that_says_nothing_is_last_and_one_that_breaks_is_noticed() -> None:
    assert places_of(np.zeros((1, 7)))[0] == 7
    assert np.isnan(losses_of(np.array([[1.0, np.nan]]))[0])


def test_recall_counts_people_once() -> None:
    """Two requests of one person at places 1 and 8, one of another at 2: 1 of 3 first, 2 of 3 within five."""
    rows = {row["length"]: row for row in recalls(np.array([1, 8, 2]), np.array([5, 5, 9]))}
    assert rows[1]["recall"] == pytest.approx(1 / 3)
    assert rows[5]["recall"] == pytest.approx(2 / 3)
    assert rows[20]["recall"] == 1.0
    assert rows[20]["std_error"] == 0.0


def test_parts_are_divided_by_time_and_requests_hold_what_went_before(tmp_path: Path) -> None:
    """640 interactions: 512 are learnt, 64 requests select, 64 test; each follows the circle, right candidate first."""
    data = opened(tmp_path)
    assert (data.learnt, len(data.validation), len(data.test)) == (512, 64, 64)
    for part in (data.validation, data.test):
        history, right, others = part[:, :4], part[:, 4], part[:, 5:]
        np.testing.assert_array_equal((history[:, -1] % ITEMS) + 1, right)
        np.testing.assert_array_equal(history[:, 1:], (history[:, :-1] % ITEMS) + 1)
        assert not (others == right[:, None]).any()
        assert not (others[:, :, None] == history[:, None]).any()
        assert all(len(set(row)) == len(row) for row in others.tolist())
    assert data.tags.shape == (ITEMS + 1, 2)
    assert not data.tags[0].any()
    assert np.count_nonzero(data.tags) == ITEMS + 1  # an item has one tag, the first has two


def test_batches_hold_what_follows_at_each_place(tmp_path: Path) -> None:
    """Of each place the first of eight candidates is the next item; weights are 0 before a person's first item."""
    data = opened(tmp_path)
    arch = design_of(next(iter(RANKING.references(build(SpaceSpec, SPACE)))), spec=build(SpaceSpec, SPACE)).arch
    ids, places, weights = data.batch(arch, Recipe(batch_windows=16), 3, seed=0)
    np.testing.assert_array_equal(places[0], [1, 2, 3, 4])
    assert ids.shape == (16, 4 + 4 * 8, 3)
    right = ids[:, 4:, 0].reshape(16, 4, 8)[..., 0]
    history = ids[:, :4, 0]
    known = weights.bool()
    np.testing.assert_array_equal(right[known], history[known] % ITEMS + 1)
    np.testing.assert_array_equal(history == 0, ~known)
    np.testing.assert_array_equal(ids[..., 1:], data.tags[ids[..., 0]])


def test_what_is_learnt_is_what_is_served(tmp_path: Path) -> None:
    """The scores of the last place of a batch are those of a request with this history and these candidates."""
    import torch

    from chipwise.model.walk.module import build as fresh

    data = opened(tmp_path)
    spec = build(SpaceSpec, SPACE)
    arch = design_of(next(iter(RANKING.references(spec))), spec=spec).arch
    model = fresh(arch, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.2)
        ids, places, _ = data.batch(arch, Recipe(batch_windows=4), 0, seed=0)
        learnt = model(ids, places[0].repeat_interleave(8)).view(4, -1, 8)
        served = model(torch.cat((ids[:, :4], ids[:, -8:]), dim=1))
    torch.testing.assert_close(learnt[:, -1], served)


def test_a_folder_holds_one_set_of_requests(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(StudyError, match="different requests"):
        opened(tmp_path, least_history=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {"ranking": SPACE["ranking"] | {"items": 25}}}, "must be 24, the number in the data"),
        ({"space": {"ranking": SPACE["ranking"] | {"tags": 4}}}, "3 tags"),
        ({"space": {"ranking": SPACE["ranking"] | {"candidates": 30}}}, "29 candidates are needed"),
        ({"least_history": 16}, "needs 20"),
        ({"tags": "colours"}, "colours"),
        ({"time": "item_id", "item": "timestamp"}, "contains an invalid time"),
        ({"path": "nothing.parquet"}, "no such file"),
        ({"test_share": 0.9}, "between 0.001 and 0.4"),
        ({"source": "movielens-100k"}, "all other sources take none"),
    ],
)
def test_mistakes_in_data_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, SpecError), match=message):
        opened(tmp_path, **changes)


def test_missing_films_are_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError) as caught:
        read_movielens(InteractionsSpec(), Path())
    assert "pip install --no-deps recbole" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_films_are_read_as_recbole_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people and three films, out of order: sorted by time, numbered, with genres."""
    folder = tmp_path / sources.MOVIELENS
    folder.mkdir(parents=True)
    rows = ["user_id:token\titem_id:token\trating:float\ttimestamp:float", "7\t11\t5\t30", "9\t2\t1\t10", "7\t3\t4\t20"]
    (folder / "ml-100k.inter").write_text("\n".join(rows))
    films = [
        "item_id:token\tmovie_title:token_seq\tclass:token_seq",
        "2\tFargo\tCrime Drama",
        "3\tHeat\t",
        "11\tCasino\tCrime",
    ]
    (folder / "ml-100k.item").write_text("\n".join(films))
    found = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: found)
    read = read_movielens(InteractionsSpec(), Path())
    assert read.names == ("", "Fargo", "Heat", "Casino")
    assert read.items.tolist() == [1, 2, 3]
    assert read.users[1] == read.users[2] != read.users[0]
    assert read.tag_names == ("", "Crime", "Drama")
    assert read.tags.tolist() == [[0, 0], [1, 2], [0, 0], [1, 0]]
    assert "no redistribution" in read.licence


def test_times_may_be_dates_and_tags_a_text(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as parquet

    days = [datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (3, 1, 2)]
    table = pa.table({"who": [1, 1, 2], "what": ["b", "a", "a"], "day": days, "tags": ["x y", "x", "x"]})
    parquet.write_table(table, tmp_path / "few.parquet")
    spec = InteractionsSpec(source="parquet", path="few.parquet", user="who", item="what", time="day", tags="tags")
    found = read_parquet(spec, tmp_path)
    assert found.items.tolist() == [1, 1, 2]
    assert found.tags.tolist() == [[0, 0], [1, 0], [1, 2]]


def test_a_model_of_other_requests_is_refused(tmp_path: Path) -> None:
    data, spec = opened(tmp_path), build(SpaceSpec, SPACE | {"ranking": SPACE["ranking"] | {"history": 5}})
    with pytest.raises(InputError, match="5 items of history, the data has 4"):
        data.require_fit(design_of(next(iter(RANKING.references(spec))), spec=spec).arch)


def test_references_are_sasrec_and_hstu() -> None:
    spec = build(SpaceSpec, SPACE)
    lines = [summary(design_of(choices, spec=spec)) for choices in RANKING.references(spec)]
    assert "attention full similarity d32 L2 h1x32 relu:32 fp32" in lines
    assert "hstu full similarity d32 L2 h1x32 no FFN fp32" in lines


@pytest.mark.parametrize("mixing", ["attention", "hstu"])
def test_a_winners_folder_loads_in_transformers(mixing: str, tmp_path: Path) -> None:
    """The scores of ``AutoModel`` are those of the module, to 1e-5; the folder comes back as it was."""
    import torch
    from transformers import AutoModel

    from chipwise.deploy.export.hf import save_pretrained
    from chipwise.model.walk.module import build as fresh

    spec = build(SpaceSpec, SPACE)
    sizes = {"d_model": 16, "depth": 2, "head_size": 8, "vocab_size": 1, "weights": "fp32"}
    layers = [{"heads": 2, "kv_heads": 2, "ffn": "relu", "ffn_width": 16}] * 2
    kinds = {"mixing": mixing, "table": "w8", "score": "scores", "sharing": "none", "tie_embeddings": False}
    chosen = {**sizes, **kinds, "layers": layers}
    arch = design_of(chosen, spec=spec).arch
    model = fresh(arch, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.2)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    save_pretrained(arch, weights, None, tmp_path / "winner")
    loaded = AutoModel.from_pretrained(tmp_path / "winner", trust_remote_code=True).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 4, (2, 9, 3)))
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).scores, model(ids), atol=1e-5, rtol=1e-5)
    again, kept = load_pretrained(tmp_path / "winner")[:2]
    assert again == arch
    assert all(np.array_equal(kept[name], value) for name, value in weights.items())
