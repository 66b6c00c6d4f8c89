"""A whole search for a ranking model on a tiny budget, for a machine known by its profile: nothing is timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.api import search
from chipwise.design.report.record import load
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError
from support.machines import core_like

ITEMS, PEOPLE, EACH = 24, 40, 16
RUN = {
    "name": "tiny-ranking",
    "task": "ranking",
    "target": {"device": "profile.json"},
    "workload": {"batch": 1},
    "constraints": {"ttft_p50": "<= 1 ms", "ndcg": ">= 5 %"},
    "space": {
        "ranking": {"items": ITEMS, "history": 4, "candidates": 6, "mixing": ["attention", "hstu"]},
        "d_model": [16, 32],
        "depth": [1],
        "head_size": [8],
        "layer": {"heads": [1, 2], "ffn": ["relu", "none"], "ffn_width": [16, 32]},
        "weights": ["fp32", "int8"],
        "layers": "alike",
    },
    "data": {"source": "parquet", "path": "walks.parquet", "least_history": 2, "licence": "made up"},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "400k", "final": "100k", "workers": 1},
}


def machine() -> dict[str, dict[str, float]]:
    """Rates of the nodes that ranking models have."""
    attention = {"node": 2e-5, "row": 1e-8, "score": 1e-9, "product": 2e-11, "value": 1e-9, "moved": 1e-9}
    rows = {"node": 1e-6, "row": 1e-8, "value": 2e-10}
    kinds = [f"attention.{kind}.{place}" for kind in ("softmax", "pointwise") for place in ("whole", "last")]
    return {name: dict(attention) for name in kinds} | {
        "bag": dict(rows),
        "dot": dict(rows),
        "elementwise.copy": {"node": 1e-6, "value": 3e-10},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile, and a Parquet file of people who go around a circle of items."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    known = core_like()
    replace(known, runtime="onnxruntime", terms=known.terms | machine()).save(tmp_path / "profile.json")
    starts = np.random.default_rng(0).integers(0, ITEMS, PEOPLE)
    who, when = np.tile(np.arange(PEOPLE), EACH), np.arange(PEOPLE * EACH)
    item = (starts[who] + when // PEOPLE) % ITEMS
    parquet.write_table(pa.table({"user_id": who, "item_id": item, "timestamp": when}), tmp_path / "walks.parquet")
    return tmp_path


def test_a_search_ends_with_a_winner_that_ranks_what_comes_next(folder: Path) -> None:
    """Of six candidates a model that knows nothing gains about 0.49; what follows is always the next of the circle."""
    import yaml

    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    found = search(folder / "run.yaml", out=folder / "run")
    winner = found.trial(found.winner)
    assert (found.status, found.task) == ("finished", "ranking")
    assert 1 - winner.test_loss > 0.6
    assert found.samples["requests"][0].keys() >= {"history", "next", "winner"}
    assert load(folder / "run" / "record.json").samples == found.samples
    report, card = ((folder / "run" / name).read_text() for name in ("report.html", "card.md"))
    assert "Items ranked first" in report
    assert "How often the next item is found" in report
    for text in (report, card):
        assert "NDCG@10" in text
        assert "bits per byte" not in text
    assert "made up" in card
    promises = json.loads((folder / "run" / "winner" / "chipwise.json").read_text())
    assert promises["ndcg"] == pytest.approx(1 - winner.test_loss)
    shipped = {path.name for path in (folder / "run" / "winner").iterdir()}
    assert {"items.json", "tags.npy", "modeling_chipwise_ranking.py"} <= shipped


def test_a_space_that_ranks_nothing_is_refused() -> None:
    space = {name: value for name, value in RUN["space"].items() if name != "ranking"}  # type: ignore[attr-defined]
    layer = {"heads": [1], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [16]}
    with pytest.raises(SpecError, match=r"space.ranking.*describe requests"):
        run_spec({**RUN, "space": space | {"vocab_size": [20], "layer": layer}}, file="run.yaml")
