"""Questions about images in the folder of a run: one file for all trainings; exported graphs answer one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import read_mapping, storage, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.errors import DataError, MeasurementError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import errors_of
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.tasks.made import is_made
from chipwise.training.tasks.multimodal.dataset import PictureQuestions, QuestionPart, load_questions, save_questions
from chipwise.training.tasks.multimodal.sources import Questions, QuestionsSpec, encoded, read_questions, vocabulary
from chipwise.training.tasks.protocol import Exported, Losses
from chipwise.training.tasks.vision.data import png

QUICK = 1_000  # questions that short trainings are judged on
FEWEST = 20  # images of the smallest part
SHOWN = 16  # questions in the report
BATCH = 64
RECIPE = {"batch_windows": BATCH, "matrix_rate": 0.004, "table_rate": 0.004}
"""On shapes, 15 s a training of 55,310 parameters: 67 % right at rates of about these, 48 % at those of text."""


class MultimodalData:
    """See :class:`chipwise.training.tasks.protocol.TaskData`.

    Args:
        spec: Where questions come from.
        base: Where its paths start.
        folder: Where the file of questions is kept.
        image: The sizes that the space is for.
    """

    recipe: Mapping[str, Any] = RECIPE
    quick = QUICK

    def __init__(self, spec: QuestionsSpec, base: Path, folder: Path, image: ImageSpace) -> None:
        self.spec, self.base, self.folder, self.image = spec, base, folder, image

    @property
    def path(self) -> Path:
        """The file of images, questions and answers."""
        return self.folder / "questions.npz"

    @property
    def facts(self) -> Path:
        """What the file was made of: source, licence, what was left out."""
        return self.folder / "questions.json"

    def prepare(self) -> None:
        """Reads or draws the questions, divides them by image and writes them once."""
        image = self.image
        wanted = digest([self.spec, image.size, image.channels, image.classes, image.words, image.question])
        if is_made(self.facts, wanted, entries="questions"):
            return
        found = read_questions(self.spec, self.base, size=image.size, channels=image.channels)
        kept, answers = answerable(found, image.classes)
        words = vocabulary([found.questions[i] for i in kept], image.words)
        parts = divided(found, kept, answers, words, length=image.question, share=self.spec.validation_share)
        pixels = parts["train"].images.astype(np.float32)
        data = PictureQuestions(
            **parts,
            words=words,
            answers=answers,
            mean=pixels.mean((0, 2, 3))[:, None, None],
            std=np.maximum(pixels.std((0, 2, 3)), 1.0)[:, None, None],
        )
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        save_questions(self.path, data)
        left_out = len(found.answers) - len(kept)
        facts = {"source": found.source, "licence": found.licence, "left_out": left_out, "identity": wanted}
        write_json(self.facts, facts)  # last: the file of questions is whole

    @cached_property
    def questions(self) -> PictureQuestions:
        """The questions of all parts."""
        return load_questions(self.path)

    def summary(self) -> Mapping[str, Any]:
        """Questions and bytes of each part, source and licence."""
        facts = read_mapping(self.facts)
        source = facts["source"]
        if facts["left_out"]:
            source += f"; {facts['left_out']:,} questions with rarer answers are left out"
        found: dict[str, Any] = {"name": self.spec.source, "source": source, "licence": facts["licence"]}
        held = self.questions
        for name, part in (("train", held.train), ("val", held.validation), ("test", held.test)):
            found |= {f"entries_{name}": len(part.answers), f"bytes_{name}": int(part.images.nbytes)}
        return found

    def data(self, arch: ArchSpec) -> DataFile:
        """The questions."""
        return DataFile(path=str(self.path), kind="picture-questions")

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions of a batch of questions with their images."""
        return BATCH * arch.max_tokens

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an image over the positions of a request."""
        chosen = {name: space.values(rows, name) for name in ("patch", "merge")}
        grids = self.image.size // chosen["patch"].astype(np.int64)
        sides = np.where(chosen["merge"] == "none", grids, grids // 2)
        return np.asarray(self.image.size**2 * self.image.channels / (sides**2 + self.image.question), np.float64)

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Wrong answers of each image's questions, which stand together, by the exported graph, one at a time."""
        part = self.questions.part(split)
        wrong = errors_of(self.answers_of(item, split), part.answers)
        if not np.isfinite(wrong).all():
            raise MeasurementError(f"{item.folder}: the exported model's logits are not finite")
        count = len(part.images)
        values, sizes = (np.bincount(part.image, each, count).astype(np.float64) for each in (wrong, None))
        return Losses(values=values[sizes > 0], sizes=sizes[sizes > 0])

    def answers_of(self, item: Exported, split: Split) -> NDArray[np.float32]:
        """Logits (questions, answers) by the exported graph."""
        from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier

        part, path = self.questions.part(split), item.folder / "judged.onnx"
        images = self.questions.scaled(part.images)
        with storage(path):
            export(item.design, item.weights, path)
        try:
            session = OnnxClassifier(path)
            rows = zip(part.image, part.words, strict=True)
            return np.stack([session.prefill(images[i][None], words[None])[0].copy() for i, words in rows])
        finally:
            path.unlink(missing_ok=True)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, Any]:
        """Some test questions with images, answers and what both say, and the share that is right by right answer."""
        held = self.questions
        part, names = held.test, held.answers
        said = {"winner": self.answers_of(winner, "test").argmax(1)}
        if reference is not None:
            said["baseline"] = self.answers_of(reference, "test").argmax(1)
        shown = [
            {
                "image": png(part.images[part.image[i]]),
                "question": " ".join(held.words[word] for word in part.words[i] if word),
                "answer": names[part.answers[i]],
                **{who: _name(names, answers[i]) for who, answers in said.items()},
            }
            for i in chosen(part.answers, said["winner"])
        ]
        return {"questions": shown, "by_answer": by_answer(part.answers, said, names)}

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """The Hugging Face folder with the answers by name, the words by number and how an image is prepared."""
        held, image = self.questions, self.image
        arch = item.design.arch
        words = {"words": list(held.words), "unknown": 1, "room": 0, "length": image.question}
        save_pretrained(arch, item.weights, None, folder, dict(files))
        names = (*held.answers, *(f"<unused {i}>" for i in range(len(held.answers), arch.classes)))
        write_json(folder / "config.json", read_mapping(folder / "config.json") | labels_of(arch, names))
        write_json(folder / "words.json", words)
        preprocessor = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": image.size, "width": image.size},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": (held.mean.ravel() / 255).tolist(),
            "image_std": (held.std.ravel() / 255).tolist(),
        }
        write_json(folder / "preprocessor_config.json", preprocessor)


def answerable(found: Questions, classes: int) -> tuple[list[int], tuple[str, ...]]:
    """Numbers of the questions whose answer is one of the ``classes`` most frequent, and those answers.

    Raises:
        DataError: There are fewer than two answers.
    """
    counts = Counter(found.answers)
    answers = tuple(sorted(sorted(counts), key=lambda answer: -counts[answer])[:classes])
    if len(answers) < 2:
        raise DataError(f"{found.source}: all questions have the same answer, so there is nothing to learn")
    known = set(answers)
    return [i for i, answer in enumerate(found.answers) if answer in known], answers


def divided(
    found: Questions, kept: list[int], answers: tuple[str, ...], words: tuple[str, ...], *, length: int, share: float
) -> dict[str, QuestionPart]:
    """Training, validation and test parts; all questions about an image are in one part.

    Raises:
        DataError: There are too few images.
    """
    images = np.unique(found.image[kept])
    size = max(1, round(share * len(images)))
    if size < FEWEST:
        raise DataError(
            f"{found.source}: {len(images)} images leave {size} for validation; at least {FEWEST} are needed"
        )
    order = np.random.default_rng(0).permutation(images)
    numbers = {answer: i for i, answer in enumerate(answers)}
    rows = np.array(kept)
    asked = encoded((found.questions[i] for i in kept), words, length)
    right = np.array([numbers[found.answers[i]] for i in kept])
    parts = {}
    for name, some in zip(("validation", "test", "train"), np.split(order, (size, 2 * size)), strict=True):
        some = np.sort(some)
        mine = np.isin(found.image[rows], some)
        parts[name] = QuestionPart(
            images=np.ascontiguousarray(found.pixels[some]),
            image=np.searchsorted(some, found.image[rows[mine]]),
            words=asked[mine],
            answers=right[mine],
        )
    return parts


def chosen(answers: NDArray[np.int64], said: NDArray[np.int64]) -> list[int]:
    """Questions to show: half of them the first of each answer in turn, half the first that are wrong."""
    turns = [np.flatnonzero(answers == answer) for answer in np.unique(answers)]
    first = [int(rows[turn]) for turn in range(SHOWN) for rows in turns if turn < len(rows)][: SHOWN // 2]
    wrong = [int(i) for i in np.flatnonzero(answers != said) if int(i) not in first][: SHOWN - len(first)]
    return first + wrong


def by_answer(
    answers: NDArray[np.int64], said: Mapping[str, NDArray[np.int64]], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Of each right answer how often it is asked for and how often each model gives it."""
    rows = []
    for number in np.unique(answers):
        mine = answers == number
        shares = {who: float((given[mine] == number).mean()) for who, given in said.items()}
        rows.append({"answer": names[number], "questions": int(mine.sum()), **shares})
    return rows


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else "?"
