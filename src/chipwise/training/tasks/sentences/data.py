"""Labelled texts in one file for all training runs; exported graphs classify one text at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.record import Record
from chipwise.errors import DataError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.kinds.sentence.choices import SentenceSpace
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.words import NOTHING, UNKNOWN, WORD, encoded, vocabulary
from chipwise.training.tasks.array_data import ArrayData, confusion, first_and_wrong
from chipwise.training.tasks.protocol import Exported
from chipwise.training.tasks.sentences.sources import SentencesSpec, read_texts

FEWEST = 20  # texts in the smallest part
SHOWN = 20  # test texts shown in the report


class SentencesData(ArrayData[SentencesSpec, SentenceSpace, LabelledArrays]):
    """Labelled texts; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": 64, "matrix_rate": 0.004, "table_rate": 0.004}
    quick = 1_000  # texts in an early evaluation
    spec_type, part, dataset, kind, name = SentencesSpec, "sentence", LabelledArrays, "arrays", "texts"
    identifying = ("size", "words", "classes")

    def make(self) -> tuple[LabelledArrays, Mapping[str, object]]:
        """Reads or generates the texts, splits them, and builds the vocabulary from the training part."""
        found, sizes = read_texts(self.spec, self.base), self.inputs
        classes = tuple(sorted(set(found.labels.values())))
        if len(classes) != sizes.classes:
            raise SpecError(
                f"must be {len(classes)}, the number in the data, not {sizes.classes}", field="space.sentence.classes"
            )
        few = round(self.spec.validation_share * len(found.labels))
        if few < FEWEST:
            raise DataError(
                f"{found.source}: {len(found.labels)} texts leave {few} for validation; at least {FEWEST} are needed"
            )
        texts = list(found.labels)
        order = np.random.default_rng(0).permutation(len(texts))
        divided = dict(zip(("validation", "test", "train"), np.split(order, (few, 2 * few)), strict=True))
        words = vocabulary((texts[i] for i in divided["train"]), sizes.words)
        ids, numbers = encoded(texts, words, sizes.size), {name: i for i, name in enumerate(classes)}
        labels = np.array([numbers[label] for label in found.labels.values()])
        parts = {name: (ids[rows], labels[rows]) for name, rows in divided.items()}
        nothing = np.zeros(1, np.float32)
        data = LabelledArrays(**parts, classes=classes, mean=nothing, std=nothing + 1)
        size = sum(map(len, texts)) / len(texts)
        return data, {"source": found.source, "licence": found.licence, "words": words, "bytes_per_text": size}

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of a text divided by its number of positions."""
        return np.full(len(rows), Record.read(self.facts).get("bytes_per_text", float) / self.inputs.size)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test texts with labels and predictions, and the winner's confusion matrix over all test texts."""
        (ids, labels), classes = self.arrays.test, self.arrays.classes
        words = Record.read(self.facts).sequence("words", str)
        said = {who: logits.argmax(1) for who, logits in self.answered(winner, reference)[0].items()}
        texts = [
            {"text": " ".join(words[word] for word in ids[i] if word), "label": classes[labels[i]]}
            | {who: classes[answers[i]] for who, answers in said.items()}
            for i in first_and_wrong(labels, said["winner"], count=SHOWN)
        ]
        matrix = confusion(labels, said["winner"], len(classes))
        return {"texts": texts, "confusion": matrix, "classes": list(classes)}

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of the classes, and a tokenizer with the word ids of the training data."""
        words, size = Record.read(self.facts).sequence("words", str), self.inputs.size
        padding = {"strategy": {"Fixed": size}, "direction": "Left", "pad_id": 0, "pad_type_id": 0}
        split = {"type": "Split", "pattern": {"Regex": WORD}, "behavior": "Removed", "invert": True}
        return {
            "config.json": labels_of(arch, self.arrays.classes),
            "tokenizer.json": {
                "version": "1.0",
                "truncation": {"direction": "Left", "max_length": size, "strategy": "LongestFirst", "stride": 0},
                "padding": {**padding, "pad_to_multiple_of": None, "pad_token": NOTHING},
                "added_tokens": [],
                "normalizer": {"type": "Lowercase"},
                "pre_tokenizer": split,
                "post_processor": None,
                "decoder": None,
                "model": {
                    "type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": UNKNOWN,
                },
            },
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": NOTHING,
                "unk_token": UNKNOWN,
                "padding_side": "left",
                "truncation_side": "left",
                "model_max_length": size,
                "model_input_names": ["input_ids"],
            },
        }  # fmt: skip
