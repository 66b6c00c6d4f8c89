"""Fields of a config.json that chipwise does not read, and configs of unknown families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chipwise
from chipwise.cli import main
from chipwise.errors import SpecError
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import read_model, resolve
from chipwise.predict.explain.explanation import to_data

LLAMA = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "bos_token_id": 1, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "transformers_version": "5.0", "attention_dropout": 0.1, "id2label": {"0": "a"}, "use_cache": True,
}  # fmt: skip
NEW = {"num_nextn_predict_layers": 2, "mtp_num_hidden_layers": 1, "first_k_dense_replace": 3, "sliding_window": 64,
       "brand_new_attention": "magic"}  # fmt: skip
SAID = "config.json fields not read: " + ", ".join(sorted(NEW))


def folder(path: Path, **fields: Any) -> Path:
    """A folder with a config of these fields."""
    (path / "config.json").write_text(json.dumps(LLAMA | fields), encoding="utf-8")
    return path


def test_every_answer_lists_the_fields_that_were_not_read(tmp_path: Path) -> None:
    place = folder(tmp_path, **NEW)
    assert SAID in chipwise.estimate(place, device="l4").notes
    found = chipwise.explain(place, device="l4")
    assert SAID in found.notes
    assert SAID in to_data(found)["notes"]
    (cell,) = chipwise.compare([str(place)], devices=["l4"]).cells
    assert SAID in cell.note


def test_fields_that_cost_nothing_are_not_listed(tmp_path: Path) -> None:
    assert read_model(folder(tmp_path)).unread == ("id2label",)
    assert not any("not read" in note for note in chipwise.estimate(folder(tmp_path), device="l4").notes)


@pytest.mark.parametrize("nested", [False, True])
def test_an_unknown_family_is_read_as_a_known_one(tmp_path: Path, nested: bool) -> None:
    """The costs are those of the Llama that the same fields describe; a nested config is read like a known one's."""
    known = resolve(folder(tmp_path)).parameters()
    text = LLAMA | NEW | {"model_type": "foobar_text"}
    data = {"text_config": text, "magic_top": 1} if nested else LLAMA | NEW
    data |= {"model_type": "foobar"}
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SpecError, match="--like llama"):
        chipwise.estimate(tmp_path, device="l4")
    found = chipwise.estimate(tmp_path, device="l4", like="llama")
    unread = ["magic_top", *(f"text_config.{name}" for name in sorted(NEW))] if nested else sorted(NEW)
    assert "read as a config.json of the family llama, since its own model_type is not known" in found.notes
    assert f"config.json fields not read: {', '.join(unread)}" in found.notes
    assert resolve(f"{tmp_path} as llama").parameters() == known
    assert set(found.notes[-2:]) <= set(chipwise.explain(tmp_path, device="l4", like="llama").notes)
    assert chipwise.compare([str(tmp_path)], devices=["l4"], like="llama").cells[0].estimate is not None


def test_the_checkpoint_of_an_unknown_family_keeps_its_format(tmp_path: Path) -> None:
    folder(tmp_path, model_type="foobar", quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    assert default_weights(f"{tmp_path} as llama") == "int4_g128"


@pytest.mark.parametrize(
    ("fields", "like", "words"),
    [
        ({"model_type": "foobar"}, "lama", "did you mean 'llama'"),
        ({"model_type": "qwen2"}, "llama", "'qwen2' is known"),
        ({"model_type": "foobar", "hidden_size": None}, "llama", "hidden_size: this field is missing"),
        ({"model_type": "foobar"}, "deepseek_v3", "this field is missing"),
    ],
)
def test_what_cannot_be_read_so_is_refused(tmp_path: Path, fields: dict[str, Any], like: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        chipwise.estimate(folder(tmp_path, **fields), device="l4", like=like)


def test_a_name_is_not_read_as_a_family() -> None:
    with pytest.raises(SpecError, match=r"like: works only with a config\.json"):
        chipwise.estimate("gpt2", device="l4", like="llama")


def test_threads_are_this_machines() -> None:
    with pytest.raises(chipwise.errors.InputError, match="threads: only applies to this machine"):
        chipwise.explain("gpt2", device="l4", threads=4)


def test_every_answer_tells_the_parameters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-30B-A3B has 30,532,122,624 published parameters, few of them active; towers always count."""
    name = "Qwen/Qwen3-30B-A3B"
    known = resolve(name)
    found = chipwise.estimate(name, device="h100-sxm")
    assert (found.parameters, found.active_parameters) == (30_532_122_624, known.active_parameters())
    data = to_data(chipwise.explain(name, device="h100-sxm"))
    assert (data["parameters"], data["active_parameters"]) == (found.parameters, found.active_parameters)
    seeing = "Qwen/Qwen2.5-VL-7B-Instruct"
    assert chipwise.estimate(seeing, device="h100-sxm").parameters == resolve(seeing).parameters()
    for command in ("estimate", "explain", "compare"):
        monkeypatch.setattr("sys.argv", ["chipwise", command, name, "--device", "h100-sxm"])
        with pytest.raises(SystemExit):
            main()
        assert "30.5 B, of which a token uses 3.35 B" in capsys.readouterr().out
