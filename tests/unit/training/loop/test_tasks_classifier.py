"""A classifier that is shipped: its graph says what the tuned model says, and a folder gives it back."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from chipwise.core.workers import WorkerPool
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.module import build
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.evaluations import evaluate
from chipwise.training.evaluations.classifier import Classifier, ClassifierHead, copy_classifier, write_classifier
from chipwise.training.evaluations.data import ChoiceQuestion, Item, Task, divide, encode
from chipwise.training.evaluations.evaluate import learn, pooled
from chipwise.training.evaluations.worker import RESULT, TaskJob, run_job

PLACES = {"the heart": "chest", "a lung": "chest", "the left hand": "limb", "one finger": "limb"}
STATES = ["is enlarged", "is absent", "shows a defect", "grows slowly"]
NAMES = list(PLACES)
ITEMS = [Item(text=f"{i}: {NAMES[i % 4]} {STATES[i // 4 % 4]}", label=PLACES[NAMES[i % 4]]) for i in range(160)]
ONE = np.ones(1, np.float32)
TASK = divide("places", [(item, None) for item in ITEMS], kind="classification", source="made up")


@pytest.fixture(scope="module")
def weights(arch: ArchSpec, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights-1.safetensors"
    save_file(dict(build(arch, seed=0).state_dict()), path)
    return path


def job(arch: ArchSpec, weights: Path, store: TokenStore, task: Path, folder: Path, form: str = "int8") -> TaskJob:
    return TaskJob(
        task=str(task),
        arch=arch,
        weight_format=form,
        weights=str(weights),
        tokenizer=str(store.tokenizer_path(300)),
        folder=str(folder),
    )


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "places.csv"
    path.write_text("\n".join(["text,label", *(f"{item.text},{item.label}" for item in ITEMS)]))
    return path


def shipped(folder: Path, model: Transformer, store: TokenStore, form: str, task: Task = TASK):
    tuned, head = learn(model, store.tokenizer(300), task, method="probe")
    write_classifier(
        folder,
        task=task,
        design=Design(arch=model.arch, weights=form),
        weights={name: value.numpy() for name, value in tuned.state_dict().items()},
        reading=ClassifierHead(
            weight=head.linear.weight.detach().numpy(),
            bias=head.linear.bias.detach().numpy(),
            mean=head.mean.numpy(),
            deviation=head.deviation.numpy(),
        ),
        tokenizer=store.tokenizer_path(300),
    )
    return tuned, head


@pytest.mark.parametrize(("tied", "taps"), [(True, 0), (False, 0), (True, 4)])
def test_the_unrounded_graph_says_what_torch_says(
    arch: ArchSpec, store: TokenStore, tmp_path: Path, tied: bool, taps: int
) -> None:
    layers = tuple(replace(layer, attention_conv=taps, ffn_conv=taps) for layer in arch.layers)
    model = build(replace(arch.with_tied(tied), layers=layers), seed=1).eval()
    tuned, head = shipped(tmp_path / "c", model, store, "fp32")
    texts = [item.text for item in TASK.test]
    ids = [encode(store.tokenizer(300), text, arch.max_tokens) for text in texts]
    with torch.no_grad():
        expected = head(pooled(tuned, ids)).numpy()
    classifier = Classifier(tmp_path / "c")
    np.testing.assert_allclose(classifier.scores(texts), expected, atol=2e-3)
    assert classifier.answer(texts) == [TASK.classes[int(i)] for i in expected.argmax(1)]
    assert classifier.knows(TASK)
    assert not classifier.knows(divide("places", [(i, None) for i in ITEMS[:-8]], kind="classification", source=""))


def test_amounts_come_back_in_their_own_unit(arch: ArchSpec, store: TokenStore, tmp_path: Path) -> None:
    sizes = {"is absent": 100.0, "grows slowly": 110.0, "is enlarged": 125.0, "shows a defect": 130.0}
    items = [Item(text=one.text, label=str(next(s for w, s in sizes.items() if w in one.text))) for one in ITEMS]
    task = divide("sizes", [(item, None) for item in items], kind="regression", source="made up")
    shipped(tmp_path / "c", build(arch, seed=0).eval(), store, "fp32", task)
    answers = Classifier(tmp_path / "c").answer([item.text for item in task.test])
    off = [abs(float(item.label) - answer) for item, answer in zip(task.test, answers, strict=True)]
    assert np.mean(off) < 6  # a third of the labels' spread; in deviations it would be off by a hundred


def test_a_job_is_done_once_and_its_folder_answers(
    arch: ArchSpec, weights: Path, store: TokenStore, task_file: Path, tmp_path: Path
) -> None:
    asked = job(arch, weights, store, task_file, tmp_path / "out")
    first = run_job(asked)
    assert first["judged"] == "exported int8 graph, in ONNX Runtime"
    assert first["value"] > 0.9
    stamp = (tmp_path / "out" / "classifier.safetensors").stat().st_mtime_ns
    assert run_job(asked) == json.loads(json.dumps(first))
    assert (tmp_path / "out" / "classifier.safetensors").stat().st_mtime_ns == stamp
    copy_classifier(tmp_path / "out", tmp_path / "copy")
    copied = Classifier(tmp_path / "copy")
    answers = copied.answer([item.text for item in TASK.test])
    right = [answer == item.label for answer, item in zip(answers, TASK.test, strict=True)]
    assert np.mean(right) == pytest.approx(first["value"])


def test_other_items_or_another_format_are_judged_anew(
    arch: ArchSpec, weights: Path, store: TokenStore, task_file: Path, tmp_path: Path
) -> None:
    asked = job(arch, weights, store, task_file, tmp_path / "out")
    assert asked.key(TASK) != replace(asked, weight_format="int4").key(TASK)
    less = divide("places", [(item, None) for item in ITEMS[:-8]], kind="classification", source="")
    assert asked.key(TASK) != asked.key(less)
    assert asked.finished(TASK) is None


def test_questions_are_answered_by_likelihood_and_ship_nothing(
    arch: ArchSpec, weights: Path, store: TokenStore, tmp_path: Path
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "where?", "options": ["the heart", "qzxjvkwq"], "answer": 0}) + "\n")
    found = run_job(job(arch, weights, store, path, tmp_path / "out", "int4"))
    assert found["method"] == "likelihood"
    assert found["judged"] == "weights rounded to int4, in torch"
    assert [p.name for p in (tmp_path / "out").iterdir()] == [RESULT]
    asked = replace(TASK, kind="choice", questions=(ChoiceQuestion(text="a", options=("b", "c"), answer=0),))
    with pytest.raises(InputError, match="no items on which to train a classifier"):
        write_classifier(
            tmp_path / "c",
            task=asked,
            design=Design(arch=arch, weights="fp32"),
            weights={},
            reading=ClassifierHead(weight=ONE, bias=ONE, mean=ONE, deviation=ONE),
            tokenizer=store.tokenizer_path(300),
        )


def test_a_classifier_that_is_not_whole_is_named(tmp_path: Path, arch: ArchSpec, store: TokenStore) -> None:
    shipped(tmp_path / "c", build(arch, seed=0).eval(), store, "int8")
    (tmp_path / "c" / "model.onnx").unlink()
    with pytest.raises(SpecError, match=r"lacks model\.onnx"):
        Classifier(tmp_path / "c")
    (tmp_path / "c" / "classifier.json").write_text("{}")
    with pytest.raises(SpecError, match="schema"):
        Classifier(tmp_path / "c")


def test_the_worker_says_why_it_failed(arch: ArchSpec, store: TokenStore, task_file: Path, tmp_path: Path) -> None:
    asked = job(arch, tmp_path / "nothing.safetensors", store, task_file, tmp_path / "out")
    with WorkerPool([sys.executable, "-m", "chipwise.training.evaluations.worker"], 1) as pool:
        pool.submit(asked.to_data())
        (event,) = pool.events()
    assert event.kind == "failed"
    assert "nothing.safetensors" in event.data["message"]
    assert not (tmp_path / "out" / RESULT).exists()


def test_tuning_makes_fewer_passes_where_its_seconds_are_few_but_one_at_least(monkeypatch, arch, store) -> None:
    """A step takes a second: seconds for three passes give three, none give one, and many give six."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(evaluate.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(evaluate, "_TIMED_STEPS", 1)
    one_pass = -(-len(TASK.train) // evaluate._TUNE_ROWS)
    model = build(arch, seed=0).eval()

    def made(cpu_s: float) -> int:
        done: list[int] = []
        learn(model, store.tokenizer(300), TASK, cpu_s=cpu_s, on_progress=lambda number, total: done.append(number))
        return done[-1]

    assert [made(cpu_s) for cpu_s in (0.0, 3.0 * one_pass, 1e6)] == [one_pass, 3 * one_pass, 6 * one_pass]
