"""Folders keep their tokenizer's settings, so that a cut model has the stop tokens of its original."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.tokenizer_files import read_tokenizer
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec, uniform

ARCH = uniform(name="m", vocab_size=64, d_model=32, depth=1, heads=2, kv_heads=1, ffn_width=64, tie_embeddings=False)
TEMPLATE = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


def llama_tokenizer(folder: Path, name: str = "tokenizer.json") -> Path:
    """Tokens 0 to 2 are special as in Llama 2: unknown, beginning and end."""
    folder.mkdir(exist_ok=True)
    letters = {chr(97 + i): 3 + i for i in range(20)}
    model = models.BPE(vocab={"<unk>": 0, "<s>": 1, "</s>": 2, **letters}, merges=[], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / name))
    return folder / name


def llama_folder(folder: Path) -> Path:
    path = llama_tokenizer(folder)
    settings = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False, "special": True},
            "eos_token": "</s>",
            "pad_token": "<unk>",
            "chat_template": TEMPLATE,
            "auto_map": {"AutoTokenizer": "custom.Tokenizer"},
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": [2, 5], "max_length": 99},
        "config.json": {"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": None},
    }
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content))
    return path


def counts_up(arch: ArchSpec, *, first: int, then: int) -> dict[str, np.ndarray]:
    """Weights whose most likely next token is ``then`` after ``first``, and ``first`` after everything else."""
    weights = {name: np.zeros_like(value) for name, value in random_weights(arch, seed=0).items()}
    weights["norm.weight"][:] = 1
    table = weights["embedding.weight"]
    table[:, 0] = 1
    table[first] = np.eye(arch.d_model)[1]
    weights["head.weight"][first, 0] = weights["head.weight"][then, 1] = 1
    return weights


@pytest.mark.parametrize("known", ["settings of the folder", "names of the tokens"])
def test_generation_ends_at_the_end_of_the_text(known: str, tmp_path: Path) -> None:
    tokenizer = llama_folder(tmp_path / "original") if known.startswith("settings") else llama_tokenizer(tmp_path / "o")
    folder = save_pretrained(ARCH, counts_up(ARCH, first=7, then=2), tokenizer, tmp_path / "cut")
    model, words = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    prompt = words("abc", return_tensors="pt")
    assert prompt["input_ids"].tolist() == [[1, 3, 4, 5]]
    with torch.no_grad():
        out = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    assert out.tolist() == [[1, 3, 4, 5, 7, 2]]
    assert (words.bos_token, words.eos_token) == ("<s>", "</s>")


def test_settings_of_the_original_are_kept(tmp_path: Path) -> None:
    tokenizer = llama_folder(tmp_path / "original")
    folder = save_pretrained(ARCH, random_weights(ARCH, seed=0), tokenizer, tmp_path / "cut")
    for name in ("tokenizer.json", "generation_config.json"):
        assert (folder / name).read_bytes() == (tmp_path / "original" / name).read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2, 5], 0)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == TEMPLATE
    assert "auto_map" not in settings
    words = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "ab"}]
    assert words.apply_chat_template(chat, tokenize=False) == "<s>ab</s>"


def test_a_single_special_token_begins_ends_and_pads(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer-300.json"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    found = read_tokenizer(path, max_tokens=64)
    assert found.roles == {"bos": 0, "eos": 0, "pad": 0}
    assert json.loads(found.files["generation_config.json"]) == {f"{r}_token_id": 0 for r in ("bos", "eos", "pad")}
    assert not found.adds_bos


def test_unknown_names_have_no_role(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer-300.json"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_special_tokens(["<|start|>", "<|stop|>", "[PAD]"])
    tokenizer.save(str(path))
    assert read_tokenizer(path, max_tokens=64).roles == {"pad": 2}


def test_a_damaged_settings_file_is_named(tmp_path: Path) -> None:
    path = llama_folder(tmp_path / "original")
    (tmp_path / "original" / "tokenizer_config.json").write_text("[]")
    with pytest.raises(SpecError, match=r"tokenizer_config\.json: must be a mapping"):
        read_tokenizer(path, max_tokens=64)


def test_gguf_files_state_the_same_tokens(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the extra llama-cpp")
    from chipwise.deploy.export.gguf import export
    from chipwise.deploy.export.gguf_read import GgufFile
    from chipwise.model.arch.design import Design

    path = llama_folder(tmp_path / "original")
    data = json.loads(path.read_text())
    data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps(data))
    design = Design(arch=ARCH)
    fields = GgufFile.open(export(design, random_weights(ARCH, seed=0), tmp_path / "m.gguf", tokenizer=path)).fields
    assert [fields[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos", "padding")] == [1, 2, 0]
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.chat_template"] == TEMPLATE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"added_tokens": None}, "added_tokens: must be a list, not nothing"),
        ({"added_tokens": {"content": "a"}}, "added_tokens: must be a list, not a mapping"),
        ({"added_tokens": ["a"]}, r"added_tokens\[0\]: must have a content and an id"),
        ({"added_tokens": [{"content": "a", "id": "x"}]}, r"added_tokens\[0\]: must have a content and an id"),
    ],
)
def test_a_damaged_tokenizer_is_named(changes, said, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": {}}} | changes))
    with pytest.raises(SpecError, match=rf"tokenizer\.json: {said}"):
        read_tokenizer(path, max_tokens=8)


@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_files_beside_a_tokenizer_that_are_no_mappings_are_named(content, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(SpecError, match=r"tokenizer_config\.json: must be a mapping of fields"):
        read_tokenizer(path, max_tokens=8)


@pytest.mark.parametrize("wrong", [[], "x", 3, [3], {"processors": "x"}, {"single": [3]}, {"processors": [3]}])
def test_a_strange_post_processor_adds_no_token(wrong, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"post_processor": wrong, "added_tokens": [{"content": "<s>", "id": 0}]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "chat_template": [3]}))
    found = read_tokenizer(path, max_tokens=8)
    assert not found.adds_bos
    assert found.chat_template is None
