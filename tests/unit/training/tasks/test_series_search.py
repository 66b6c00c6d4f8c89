"""A whole search for a forecaster on a tiny budget, for a device known by its data sheet: nothing is timed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chipwise.api import search
from chipwise.design.report.record import load
from chipwise.design.run.spec import run_spec
from chipwise.design.run.winner import read_winner
from chipwise.errors import SpecError

RUN = {
    "name": "tiny-series",
    "task": "series",
    "target": {"device": "raspberry-pi-5", "runtime": "llama.cpp"},
    "workload": {"prompt_tokens": 16, "new_tokens": 8},
    "constraints": {"peak_memory": "<= 4 GB", "bits_per_value": "<= 9"},
    "space": {
        "d_model": [64],
        "depth": [1, 2],
        "vocab_size": [17],
        "head_size": [32],
        "layer": {"heads": [2], "kv_heads": [2], "ffn": ["swiglu"], "ffn_width": [64, 128]},
        "weights": ["int8"],
        "layers": "alike",
        "max_tokens": 64,
    },
    "data": {"source": "waves"},
    "train": {"precision": "fp32"},
    "budget": {"tokens": "100k", "final": "25k", "workers": 1},
}


def test_a_search_ends_with_a_winner_in_the_words_of_its_task(tmp_path: Path) -> None:
    """17 tokens: a model that knows nothing needs log2 17 = 4.1 bits a value; a few steps give less."""
    found = search(RUN, out=tmp_path / "run")
    winner = found.trial(found.winner)
    assert (found.status, found.task) == ("finished", "series")
    assert winner.test_loss < 4.1
    assert found.samples["forecasts"][0].keys() >= {"true", "winner"}
    assert load(tmp_path / "run" / "record.json").samples == found.samples
    report = (tmp_path / "run" / "report.html").read_text()
    card = (tmp_path / "run" / "card.md").read_text()
    assert "What it forecasts" in report
    assert "<polyline" in report
    for text in (re.sub(r"<script.*?</script>", "", report, flags=re.S), card):
        assert "bits per value" in text
        assert "bits per byte" not in text
    promises = json.loads((tmp_path / "run" / "winner" / "chipwise.json").read_text())
    assert promises["bits_per_value"] == pytest.approx(winner.test_loss)
    assert (tmp_path / "run" / "winner" / "quantiles.json").exists()
    shipped = read_winner(tmp_path / "run" / "winner")  # as chipwise measure and evaluate read it
    assert [limit.metric for limit in shipped.limits] == ["peak_memory", "bits_per_value"]
    assert search(RUN, out=tmp_path / "run", resume=True).winner == found.winner


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "serie"}, "unknown task 'serie'; did you mean"),
        ({"objectives": {"bits_per_byte": "minimize"}}, "unknown metric"),
        ({"objectives": {"tpot_p50": "minimize"}}, "must contain bits_per_value: minimize"),
        ({"quality": "supernet", "budget": {"cpu": "100 s"}}, "supernet works for text only"),
        ({"tasks": ["mine.csv"]}, "these tasks evaluate text models only"),
    ],
)
def test_what_a_task_does_not_know_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run_spec({**RUN, **changes}, file="run.yaml")
    assert run_spec(RUN, file="run.yaml").identity != run_spec({**RUN, "seed": 1}, file="run.yaml").identity
