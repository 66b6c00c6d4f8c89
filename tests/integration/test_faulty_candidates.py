"""A search whose candidates hang, crash, exhaust memory or return NaN finishes, and records each failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chipwise import api
from chipwise.deploy.export import exporters as exporting
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.runtimes import fake
from chipwise.design.phases import run_budget
from chipwise.design.targets import bench, local
from support.machines import core_like

SPEC = """
name: faulty
target: {runtime: fake}
profiling: measured
workload: {prompt_tokens: 8, new_tokens: 8}
constraints: {tpot_p50: <= 50 ms}
objectives: {bits_per_byte: minimize, tpot_p50: minimize}
space:
  d_model: [32, 64]
  depth: [1, 2, 3]
  vocab_size: [512]
  weights: [fp32, int8]
  layer: {heads: [1, 2], kv_heads: [1], ffn: [silu], ffn_width: [64, 128]}
  head_size: [16]
  max_tokens: 32
data: {source: files, paths: [text.txt], entries: lines}
budget: {tokens: 200k, final: 25k, workers: 2}
"""
FAULTS = {"hang": "no answer within", "crash": "SIGABRT", "memory": "out of memory", "nan": "not finite"}
_left: list[str] = []


def export(design, weights, path):
    """The fake runtime's exporter, which gives each candidate the next fault until none is left."""
    made = fake.export(design, weights, path)
    if path.stem == "random" and design.arch.name != "baseline" and _left:
        made.write_text(json.dumps(json.loads(made.read_text()) | {"fault": _left.pop()}))
    return made


def measured(path, workload, **settings):
    """Only the hanging candidate has a short timeout; others may be slow."""
    hangs = json.loads(path.read_text()).get("fault") == "hang"
    brief = {"seconds": 0.2, "attempts": 1}
    return measure(path, workload, **settings | brief | {"timeout_s": 8.0 if hangs else 300.0})


@pytest.mark.slow
def test_a_search_outlives_its_candidates(tmp_path: Path, monkeypatch) -> None:
    _left[:] = list(FAULTS)
    lines = (f"The {i}th patient has {i * 7 % 13} symptoms.\n" for i in range(20_000))
    (tmp_path / "text.txt").write_text("".join(lines))
    (tmp_path / "faulty.yaml").write_text(SPEC)
    monkeypatch.setitem(exporting.EXPORTERS._hidden, "fake", "test_faulty_candidates:export")
    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(run_budget, "FINALS_S", 2.0)
    monkeypatch.setattr(local, "calibrate", lambda **_: core_like())
    record = api.search(tmp_path / "faulty.yaml", out=tmp_path / "run")
    reasons = [trial.reason for trial in record.trials if trial.state == "failed" and trial.reason]
    for fault, words in FAULTS.items():
        assert any(words in reason for reason in reasons), f"{fault}: {reasons}"
    assert record.winner is not None
    assert (tmp_path / "run" / "winner" / "model.json").is_file()
