"""Advice applied: files that read back as the changed model, or a sentence where there is no file to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from explain_cases import case

from chipwise.errors import InputError
from chipwise.model.arch.arch import uniform
from chipwise.model.published.read import resolve
from chipwise.model.published.write import to_config
from chipwise.predict.cost.model import Predicted
from chipwise.predict.explain.advice import Advice, Gain, Proposal
from chipwise.predict.explain.apply import apply
from chipwise.predict.explain.gains import advise
from chipwise.predict.explain.question import CostQuestion


def advice(changed: CostQuestion) -> Advice:
    gain = Gain(metric="tpot_p50", before=2, after=1, ratio=Predicted(value=2, low=1.5, high=2.5))
    proposal = Proposal(title="a change", touches="architecture", how="by hand", changed=changed)
    return Advice(rule="any", proposal=proposal, headline=gain, gains=(gain,), sure=True)


def test_a_llama_stays_a_config_with_the_fields_it_had(tmp_path: Path) -> None:
    arch = uniform(vocab_size=32_000, d_model=512, depth=8, heads=8, ffn_width=1408)
    original = tmp_path / "config.json"
    original.write_text(json.dumps(to_config(arch) | {"bos_token_id": 7}))
    asked = case(str(original))
    told = next(each for each in advise(asked, every=True) if each.rule == "depth")
    out = tmp_path / "new.json"
    assert apply(asked, told, out, original=str(original)) == "Hugging Face config"
    assert resolve(str(out)).digest == told.proposal.changed.arch.digest
    assert json.loads(out.read_text())["bos_token_id"] == 7


def test_what_transformers_does_not_know_becomes_a_spec(tmp_path: Path) -> None:
    asked = case("meta-llama/Llama-2-7b-hf", prompt_tokens=32_000)
    told = next(each for each in advise(asked) if each.rule == "window")
    out = tmp_path / "new.json"
    assert apply(asked, told, out) == "chipwise spec"
    assert resolve(str(out)).digest == told.proposal.changed.arch.digest


def test_what_changes_no_model_says_how_to_apply_it(tmp_path: Path) -> None:
    asked = case("gpt2")
    with pytest.raises(InputError, match="by hand"):
        apply(asked, advice(asked.question.but(weights="int8")), tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
