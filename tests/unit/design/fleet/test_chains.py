"""Models one after another: planned together, for the chain's own limits."""

from __future__ import annotations

from pathlib import Path

import pytest

import chipwise
from chipwise.design.fleet.chains import Chain, read_chain
from chipwise.errors import Infeasible, SpecError

FILE = """\
rate: 20/s
devices: l4
requests: 60
{limits}models:
- {{model: google-bert/bert-base-uncased, prompt: 100, degrees: [1]}}
- {{model: Qwen/Qwen3-0.6B, prompt: 300, new: 30, degrees: [1], limits: {{ttft_p99: 1 s}}}}
"""


def chain(tmp_path: Path, limits: str = "") -> Chain:
    path = tmp_path / "chain.yaml"
    path.write_text(FILE.format(limits=limits))
    found = chipwise.plan(path)
    assert isinstance(found, Chain)
    return found


def test_a_chain_costs_what_its_models_do_and_takes_what_they_take(tmp_path: Path) -> None:
    found = chain(tmp_path)
    prices = [plan.best.usd_per_h or 0.0 for plan in found.plans]
    assert found.usd_per_h == pytest.approx(sum(prices))
    together = sum(plan.best.times["e2e_p50"].value for plan in found.plans)
    assert found.times["e2e_p50"].value == pytest.approx(together, rel=0.1)
    assert "then Qwen/Qwen3-0.6B" in found.headline()


def test_replicas_are_added_until_the_whole_chain_holds(tmp_path: Path) -> None:
    loose = chain(tmp_path)
    limit = 1.4 * loose.times["e2e_p99"].value
    tight = chain(tmp_path, f"limits: {{e2e_p99: {limit:.4f} s}}\n")
    assert sum(tight.replicas) > sum(loose.replicas)
    assert tight.times["e2e_p99"].value < loose.times["e2e_p99"].value


def test_a_limit_that_no_number_of_replicas_meets_is_named(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"e2e_p99 <= 1 ms \(closest"):
        chain(tmp_path, "limits: {e2e_p99: 1 ms}\n")


def test_mistakes_in_a_chain_are_named(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text("rate: 1/s\nmodels: gpt2\n")
    with pytest.raises(SpecError, match="models: must be a list of models"):
        read_chain(path)
    path.write_text("rate: 1/s\nmodels:\n- {model: gpt2, colour: red}\n")
    with pytest.raises(SpecError, match=r"models\[0\]: unknown field 'colour'"):
        read_chain(path)
    path.write_text("rate: 1/s\nmodel: gpt2\n")
    assert read_chain(path) is None
