"""Classifying texts: the contract of tasks, made commands, tables of the user's, and the tokenizer that is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.files import build
from chipwise.errors import DataError, SpecError
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.sentences.sources import COMMANDS, SentencesSpec, commands, read_texts
from chipwise.training.tasks.sentences.task import SENTENCES

SPACE: dict[str, Any] = {
    "sentence": {"size": 12, "words": 110, "classes": 12, "table": ["full", "w8"]},
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [16],
    "norm": "layernorm",
    "layer": {"heads": [1, 2], "ffn": ["gelu"], "ffn_width": [32, 64]},
    "layers": "alike",
}


class TestSentences(TaskSuite):
    """A thousand commands."""

    task = SENTENCES
    space: ClassVar[dict[str, Any]] = SPACE
    data: ClassVar[dict[str, Any]] = {"source": "commands", "texts": 1_000}


def test_commands_are_of_every_kind_and_repeat() -> None:
    """Equal seeds give equal commands; each kind is about as frequent."""
    found = commands(3_000, seed=1)
    assert found == commands(3_000, seed=1) != commands(3_000, seed=2)
    counts = {label: list(found.values()).count(label) for label in COMMANDS}
    assert min(counts.values()) > 100
    assert all("*" not in text and "#" not in text for text in found)


@pytest.mark.parametrize("table", ["texts.csv", "texts.jsonl"])
def test_a_users_table_is_read(tmp_path: Path, table: str) -> None:
    """CSV with a comma in a text, or JSONL."""
    rows = {
        "texts.csv": 'text,label\n"cheap, now",spam\nsee you at six,ham\n',
        "texts.jsonl": '{"text": "cheap, now", "label": "spam"}\n{"text": "see you at six", "label": "ham"}\n',
    }
    (tmp_path / table).write_text(rows[table])
    found = read_texts(SentencesSpec(source="files", path=table), tmp_path)
    assert found.labels == {"cheap, now": "spam", "see you at six": "ham"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,label\na,x\na,y\n", "two labels"),
        ("text,class\na,x\n", "row 1 has no text 'label'"),
        ("text,label\na,\n", "row 1 has no text 'label'"),
    ],
)
def test_broken_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    """One line with the file and the row."""
    (tmp_path / "texts.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_texts(SentencesSpec(source="files", path="texts.csv"), tmp_path)


def test_another_number_of_labels_is_refused(tmp_path: Path) -> None:
    """The space says how many there are."""
    space = build(SpaceSpec, {**SPACE, "sentence": {**SPACE["sentence"], "classes": 7}})
    opened = SENTENCES.open({"source": "commands", "texts": 500}, base=tmp_path, folder=tmp_path, space=space)
    with pytest.raises(SpecError, match="must be 12, the number in the data, not 7"):
        opened.prepare()


def test_the_shipped_tokenizer_numbers_words_as_the_data(tmp_path: Path) -> None:
    """Test texts, an unknown word and one that is too long, by transformers and by the data's own rule."""
    transformers = pytest.importorskip("transformers")
    from chipwise.core.files import write_json
    from chipwise.training.data.words import encoded

    opened: Any = SENTENCES.open(
        {"source": "commands", "texts": 500}, base=tmp_path, folder=tmp_path, space=build(SpaceSpec, SPACE)
    )
    opened.prepare()
    files = opened.shipped(TestSentences().design().arch)
    for name, content in files.items():
        write_json(tmp_path / name, content)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    words = tuple(files["tokenizer.json"]["model"]["vocab"])
    texts = ["Turn the kitchen light on, please!", "a zebra at six", " ".join(["louder"] * 30)]
    assert tokenizer(texts, padding="max_length", truncation=True)["input_ids"] == encoded(texts, words, 12).tolist()
