"""Questions about images, in one file for all training runs; exported graphs answer one question at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.record import Record
from chipwise.errors import DataError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.dataset import Split
from chipwise.training.data.images.pixels import image_processor, png, scales_of
from chipwise.training.data.words import encoded, vocabulary
from chipwise.training.tasks.array_data import ArrayData, first_and_wrong
from chipwise.training.tasks.multimodal.dataset import PictureQuestions, QuestionPart
from chipwise.training.tasks.multimodal.sources import Questions, QuestionsSpec, read_questions
from chipwise.training.tasks.protocol import Exported

FEWEST = 20  # images in the smallest part
SHOWN = 16  # questions shown in the report
RECIPE = {"batch_windows": 64, "matrix_rate": 0.004, "table_rate": 0.004}
"""A model with 55,310 parameters, trained for 15 s on ``shapes``, gives 67 % right answers with these rates, and 48 %
with those for text."""


class MultimodalData(ArrayData[QuestionsSpec, ImageSpace, PictureQuestions]):
    """Questions about images; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = RECIPE
    quick = 1_000  # questions in an early evaluation
    spec_type, part, dataset, kind, name = QuestionsSpec, "image", PictureQuestions, "picture-questions", "questions"
    identifying = ("size", "channels", "classes", "words", "question")

    def make(self) -> tuple[PictureQuestions, Mapping[str, object]]:
        """Reads or generates the questions, and splits them by image."""
        image = self.inputs
        found = read_questions(self.spec, self.base, size=image.size, channels=image.channels)
        kept, answers = answerable(found, image.classes)
        words = vocabulary([found.questions[i] for i in kept], image.words)
        parts = divided(found, kept, answers, words, length=image.question, share=self.spec.validation_share)
        mean, std = scales_of(parts["train"].images)
        data = PictureQuestions(**parts, words=words, answers=answers, mean=mean, std=std)
        left_out = len(found.answers) - len(kept)
        return data, {"source": found.source, "licence": found.licence, "left_out": left_out}

    def summary(self) -> Mapping[str, object]:
        """Name, source and licence of the data, and the number of questions and of bytes in each part."""
        facts = Record.read(self.facts)
        left_out = facts.get("left_out", int)
        more = f"; without {left_out:,} questions with rarer answers" if left_out else ""
        return {**super().summary(), "source": facts.get("source", str) + more}

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an image divided by the number of positions of a request."""
        chosen = {name: space.values(rows, name) for name in ("patch", "merge")}
        grids = self.inputs.size // chosen["patch"].astype(np.int64)
        sides = np.where(chosen["merge"] == "none", grids, grids // 2)
        return np.asarray(self.inputs.size**2 * self.inputs.channels / (sides**2 + self.inputs.question), np.float64)

    def alike(self, split: Split) -> NDArray[np.int64]:
        """Image ids: the questions about one image form a group."""
        return self.arrays.part(split).image

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test questions with image and the models' answers, and accuracy for each right answer."""
        held = self.arrays
        part, names = held.test, held.answers
        said = {who: logits.argmax(1) for who, logits in self.answered(winner, reference)[0].items()}
        shown = [
            {
                "image": png(part.images[part.image[i]]),
                "question": " ".join(held.words[word] for word in part.words[i] if word),
                "answer": names[part.answers[i]],
                **{who: _name(names, answers[i]) for who, answers in said.items()},
            }
            for i in first_and_wrong(part.answers, said["winner"], count=SHOWN)
        ]
        return {"questions": shown, "by_answer": by_answer(part.answers, said, names)}

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of the answers, the word ids, and the settings for preprocessing images."""
        held, image = self.arrays, self.inputs
        names = (*held.answers, *(f"<unused {i}>" for i in range(len(held.answers), arch.outputs)))
        return {
            "config.json": labels_of(arch, names),
            "words.json": {"words": list(held.words), "unknown": 1, "room": 0, "length": image.question},
            "preprocessor_config.json": image_processor(image.size, held.mean, held.std),
        }


def answerable(found: Questions, classes: int) -> tuple[list[int], tuple[str, ...]]:
    """Indices of the questions that have one of the ``classes`` most frequent answers, and these answers.

    Raises:
        DataError: There are fewer than two different answers.
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
    """Splits questions into training, validation and test parts; all questions about an image are in one part.

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


def by_answer(
    answers: NDArray[np.int64], said: Mapping[str, NDArray[np.int64]], names: tuple[str, ...]
) -> list[dict[str, object]]:
    """For each right answer, the number of questions, and the share that each model answers correctly."""
    rows = []
    for number in np.unique(answers):
        mine = answers == number
        shares = {who: float((given[mine] == number).mean()) for who, given in said.items()}
        rows.append({"answer": names[number], "questions": int(mine.sum()), **shares})
    return rows


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else "?"
