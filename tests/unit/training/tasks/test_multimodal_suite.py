"""Questions about images: the contract of tasks, drawn images by what they show, tables of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.words import encoded, vocabulary
from chipwise.training.tasks.multimodal import shapes
from chipwise.training.tasks.multimodal.data import MultimodalData
from chipwise.training.tasks.multimodal.sources import QuestionsSpec
from chipwise.training.tasks.multimodal.task import MULTIMODAL

IMAGE = {"size": 32, "channels": 3, "classes": 14, "question": 8, "words": 40, "patch": [8, 16]}
SPACE: dict[str, Any] = {
    "image": {**IMAGE, "merge": ["none", "join"]},
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [16],
    "norm": "layernorm",
    "layer": {"heads": [1, 2], "ffn": ["gelu"], "ffn_width": [32, 64]},
    "layers": "alike",
}


class TestMultimodal(TaskSuite):
    """Two to four shapes, scaled to 32 x 32 pixels."""

    task = MULTIMODAL
    space: ClassVar[dict[str, Any]] = SPACE
    data: ClassVar[dict[str, Any]] = {"source": "shapes", "images": 420}


class TestMultimodalByCrossAttention(TaskSuite):
    """The same, with designs whose words see the image by cross-attention."""

    task = MULTIMODAL
    space: ClassVar[dict[str, Any]] = {**SPACE, "image": {**IMAGE, "merge": ["none", "join"], "image_in": ["cross"]}}
    data: ClassVar[dict[str, Any]] = {"source": "shapes", "images": 420}


def test_references_put_the_image_before_the_words() -> None:
    """As LLaVA does, whatever the space lists."""
    for ways in (["prefix"], ["cross", "prefix"], ["cross"]):
        space = build(SpaceSpec, {**SPACE, "image": {**IMAGE, "image_in": ways}})
        designs = [design_of(choices, spec=space) for choices in MULTIMODAL.references(space)]
        assert designs
        assert not any(design.arch.crosses for design in designs)


def test_every_answer_is_asked_for_and_listed() -> None:
    """No answer but the fourteen, and each at least once in a thousand: a guess of the commonest is right to 40 %."""
    found = shapes.generate(800, seed=1)
    known = (*shapes.NUMBERS, *shapes.COLOURS, *shapes.PLACES, "yes", "no")
    counts = {answer: found.answers.count(answer) for answer in known}
    assert sum(counts.values()) == len(found.answers) == 2400
    assert set(found.answers) <= set(known)
    assert min(counts[answer] for answer in ("zero", "one", "two", "red", "left", "right", "yes", "no")) > 24
    assert max(counts.values()) < 0.4 * 2400


def test_pictures_show_what_questions_ask() -> None:
    """The colour named in the question covers pixels at the stated place."""
    found, checked = shapes.generate(300, seed=2), 0
    for number, question, answer in zip(found.image, found.questions, found.answers, strict=True):
        pixels = found.pixels[number].astype(float)
        if question.startswith("what colour") or (question.startswith("is there a") and answer == "yes"):
            colour = answer if question.startswith("what") else question.split()[3]
            near = np.abs(pixels - np.array(shapes.COLOURS[colour])).max(-1) < 50
            assert near.sum() >= 8, question
            checked += 1
    assert checked > 100


def test_the_same_seed_draws_the_same() -> None:
    one, same, other = (shapes.generate(5, seed=seed) for seed in (3, 3, 4))
    assert (one.pixels == same.pixels).all()
    assert one.questions == same.questions
    assert (one.pixels != other.pixels).any()


def test_questions_stand_at_the_end_of_their_room() -> None:
    words = vocabulary(["is it red", "is it blue"], 5)
    assert words == ("<nothing>", "<unknown>", "is", "it", "blue")  # by frequency, then by the alphabet
    assert encoded(["is it red", "it"], words, 4).tolist() == [[0, 2, 3, 1], [0, 0, 0, 3]]
    assert encoded(["a b is it blue"], words, 3).tolist() == [[2, 3, 4]]


def table(folder: Path, rows: list[dict[str, str]]) -> Path:
    (folder / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "qa.jsonl"


def opened(folder: Path, **data: Any) -> MultimodalData:
    space = build(SpaceSpec, {**SPACE, "image": {**IMAGE, "classes": 2}})
    found = MULTIMODAL.open({"source": "files", **data}, base=folder, folder=folder / "made", space=space)
    assert isinstance(found, MultimodalData)
    return found


def test_a_table_of_the_users_is_learnt_from(tmp_path: Path) -> None:
    """Two questions about each of 100 images; answers other than the two most common are left out, with a note."""
    rows = []
    for i in range(100):
        Image.new("RGB", (40, 30), (255 * (i % 2), 0, 0)).save(tmp_path / f"{i}.png")
        rows += [{"image": f"{i}.png", "question": "Is it red?", "answer": "Yes" if i % 2 else "no"}]
        rows += [{"image": f"{i}.png", "question": "Is it dark?", "answer": "rarely" if i == 7 else "no"}]
    table(tmp_path, rows)
    data = opened(tmp_path, path="qa.jsonl", licence="mine", validation_share=0.2)
    data.prepare()
    held, summary = data.arrays, data.summary()
    assert held.answers == ("no", "yes")
    assert held.words == ("<nothing>", "<unknown>", "?", "is", "it", "red", "dark")
    assert summary["licence"] == "mine"
    assert "without 1 questions with rarer answers" in summary["source"]
    assert sum(summary[f"entries_{part}"] for part in ("train", "val", "test")) == 199
    assert held.train.images.shape == (60, 3, 32, 32)
    red = held.train.images[:, 0].mean((1, 2))[held.train.image] > 128
    asked = (held.train.words == held.words.index("red")).any(1)
    assert (held.train.answers == (red & asked)).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no questions"),
        ("{", "row 1: not valid JSON"),
        ('{"image": "a.png", "question": "?"}', "row 1 has no text 'answer'"),
        ('{"image": "a.png", "question": "what", "answer": "no"}', "a.png: there is no such file"),
        ('{"image": "qa.jsonl", "question": "what", "answer": "no"}', "not an image that Pillow reads"),
    ],
)
def test_broken_tables_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "qa.jsonl").write_text(text)
    with pytest.raises(SpecError, match=words):
        opened(tmp_path, path="qa.jsonl").prepare()


def test_fields_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match=r"path: is missing; name the file"):
        QuestionsSpec(source="files")
    with pytest.raises(SpecError, match=r"space\.image: is missing; describe both inputs"):
        MULTIMODAL.require_fit(
            Workload(prompt_tokens=1, new_tokens=1),
            build(SpaceSpec, {**SPACE, "image": {"size": 32, "classes": 2, "patch": [8]}}),
        )
    for image, words in (
        ({**IMAGE, "words": 0}, "words: must be from 3"),
        ({**IMAGE, "question": 0}, "question: `words`, `merge`, `image_in` and `pooling: last`"),
        (
            {**IMAGE, "question": 0, "words": 0, "image_in": ["cross"]},
            "question: `words`, `merge`, `image_in` and `pooling: last`",
        ),
    ):
        with pytest.raises(SpecError, match=words):
            build(SpaceSpec, {**SPACE, "image": image})


def test_merging_needs_an_even_grid() -> None:
    """Patches of 32 pixels of 96 make a grid of three, which is never merged."""
    image = {**IMAGE, "size": 96, "patch": [32, 16], "merge": ["none", "mean", "join"]}
    space = SearchSpace(build(SpaceSpec, {**SPACE, "image": image}))
    rows = space.sample(60, np.random.default_rng(0))
    tokens = {}
    for row in rows:
        choices, arch = space.choices(row), space.design(row).arch
        tokens[choices["patch"], choices["merge"]] = arch.image_tokens
    assert tokens == {(32, "none"): 9, (16, "none"): 36, (16, "mean"): 9, (16, "join"): 9}
