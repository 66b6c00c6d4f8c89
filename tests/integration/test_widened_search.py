"""A search that trains widens its space by itself, within its limits, and goes on in the wider space."""

from __future__ import annotations

import pytest

from chipwise import api

pytestmark = pytest.mark.slow

RUN = {
    "name": "toy",
    "target": {"device": "raspberry-pi-5", "runtime": "onnxruntime"},
    "workload": {"prompt_tokens": 16, "new_tokens": 16},
    "constraints": {"tpot_p50": "<= 1 s", "parameters": "<= 60k"},
    "objectives": {"bits_per_byte": "minimize", "parameters": "minimize"},
    "space": {
        "d_model": [16, 32],
        "depth": [1, 2],
        "vocab_size": [512],
        "head_size": [16],
        "layer": {"heads": [2], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [32, 64]},
        "weights": ["fp32", "int8"],
        "max_tokens": 64,
    },
    "data": {"source": "files", "paths": ["package:chipwise/core/*.py"], "entries": "blank-lines"},
    "train": {"precision": "fp32"},
    "prior": "shipped",
    "budget": {"tokens": "100k", "final": "30k"},
    "quality": "proxy",
    "widen": "auto",
}


def test_a_search_that_trains_widens_its_space_within_the_limit_and_goes_on_in_it(tmp_path) -> None:
    """A width of 64 fits into 60,000 parameters, 128 does not: its table of 512 rows alone has 65,536."""
    phases = []
    record = api.search(RUN, out=tmp_path / "run", on_progress=lambda status: phases.append(status.phase))
    assert "screening a wider space" in phases
    assert record.space.choices["d_model"] == [16, 32, 64]
    assert "d_model 64 (the file lists up to 32)" in record.space.widened
    candidates = [trial for trial in record.trials if trial.number != record.baseline]
    assert any(trial.choices["d_model"] == 64 for trial in candidates)
    assert all(trial.parameters <= 60_000 for trial in candidates)
    again = api.report(tmp_path / "run")
    assert (again.space, again.winner) == (record.space, record.winner)
    more = RUN | {"budget": {"tokens": "130k", "final": "30k"}}
    longer = api.search(more, out=tmp_path / "run", resume=True)
    assert longer.space.choices == record.space.choices
    assert len(longer.trials) >= len(record.trials)
