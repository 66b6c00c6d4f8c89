"""Stores, loads and runs fine-tuned classifiers. A classifier's folder contains:

::

    tasks/organ-system/
    ├── model.onnx               the tuned model in its deployed format, up to its last hidden states
    ├── classifier.safetensors   its weights before rounding (``model.``), and the linear head (``head.``)
    ├── classifier.json          classes, architecture, format, how it was evaluated
    └── tokenizer.json

The graph is the exported text model without its head, so the deployed file is the one that was evaluated. Axes: I
texts, T tokens, D width, C classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.core.files import storage, write_atomic, write_json
from chipwise.core.record import Record
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data, to_data
from chipwise.training.data.tokenizer import load_tokenizer
from chipwise.training.evaluations.data import Task, encode

SCHEMA = "chipwise.classifier/1"
FOLDER = "tasks"  # folder inside a winner's folder, with one folder per task
_FILES = ("classifier.json", "classifier.safetensors", "model.onnx", "tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierHead:
    """Linear classifier head on standardised features: mean, maximum and last value of the last hidden states."""

    weight: Float32Array  # (C, 3 D)
    bias: Float32Array  # (C,)
    mean: Float32Array  # (3 D,)
    deviation: Float32Array  # (3 D,)

    def __call__(self, hidden_TD: NDArray[np.floating]) -> Float32Array:
        """Scores (C,) of one text."""
        features = np.concatenate([hidden_TD.mean(axis=0), hidden_TD.max(axis=0), hidden_TD[-1]])
        scores: Float32Array = self.weight @ ((features - self.mean) / self.deviation) + self.bias
        return scores


class Classifier:
    """A fine-tuned model that classifies texts or predicts a number for each text; it runs in ONNX Runtime.

    Args:
        folder: A folder written by :func:`write_classifier`, such as ``winner/tasks/organ-system``.

    Raises:
        SpecError: A file is missing or broken.
    """

    def __init__(self, folder: str | Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

        place = Path(folder)
        self.about = Record.read(place / _FILES[0])
        if self.about.get("schema", str, "") != SCHEMA:
            raise SpecError(f"is not a classifier in the format {SCHEMA}", file=str(place / _FILES[0]), field="schema")
        missing = [name for name in _FILES if not (place / name).is_file()]
        if missing:
            raise SpecError(f"the classifier's folder lacks {', '.join(missing)}", file=str(place))
        self.arch: ArchSpec = from_data(self.about.get("arch", dict), file=str(place / _FILES[0]))
        self.classes: tuple[str, ...] = tuple(self.about.sequence("classes", str))
        try:
            tensors = load_file(place / _FILES[1])
        except SafetensorError as error:
            raise SpecError(f"cannot be read as weights: {error}", file=str(place / _FILES[1])) from None
        self._read = ClassifierHead(**{name: tensors[f"head.{name}"] for name in ClassifierHead.__slots__})
        self._tokenizer = load_tokenizer(place / _FILES[3])
        self._graph = OnnxRuntimeSession(place / _FILES[2], capacity=self.arch.max_tokens)

    @property
    def judged(self) -> str:
        """Describes how the evaluated model runs."""
        return f"exported {self.about.get('weights', str)} graph, in ONNX Runtime"

    def knows(self, task: Task) -> bool:
        """Whether the classifier was tuned on exactly the training items of ``task``."""
        return self.about.get("items", str) == task.identity

    def scores(self, texts: Sequence[str]) -> Float32Array:
        """Scores of each class, (I, C); for regression predicted numbers (I, 1), in the unit of the labels."""
        found = []
        for text in texts:
            tokens = np.array([encode(self._tokenizer, text, self.arch.max_tokens)], np.int64)
            found.append(self._read(self._graph.all_logits(tokens)[0]))
        scores: Float32Array = np.stack(found) if found else np.zeros((0, max(1, len(self.classes))), np.float32)
        if self.classes:
            return scores
        scale = self.about.record("amounts")
        return scores * np.float32(scale.get("deviation", float)) + np.float32(scale.get("mean", float))

    def answer(self, texts: Sequence[str]) -> list[str] | list[float]:
        """The predicted class of each text, or the predicted number."""
        scores = self.scores(texts)
        if not self.classes:
            return [float(value) for value in scores[:, 0]]
        return [self.classes[int(i)] for i in scores.argmax(axis=1)]


def write_classifier(
    folder: Path,
    *,
    task: Task,
    design: Design,
    weights: Mapping[str, AnyArray],
    reading: ClassifierHead,
    tokenizer: Path,
) -> None:
    """Writes the files of :class:`Classifier`; the small JSON file is written last and marks the folder complete.

    Raises:
        InputError: The task has no training items.
        StorageError: The files cannot be written.
    """
    from safetensors.numpy import save

    if task.kind == "choice":
        raise InputError(f"{task.name}: a multiple-choice task has no items on which to train a classifier")
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": np.ascontiguousarray(value, np.float32) for name, value in weights.items()}
    tensors |= {f"head.{name}": np.ascontiguousarray(getattr(reading, name)) for name in ClassifierHead.__slots__}
    write_atomic(folder / _FILES[1], save(tensors))
    write_atomic(folder / _FILES[2], features_graph(design, weights))
    write_atomic(folder / _FILES[3], tokenizer.read_bytes())
    labels = np.array([float(item.label) for item in task.train]) if task.kind == "regression" else None
    about = {
        "schema": SCHEMA,
        "task": task.name,
        "kind": task.kind,
        "items": task.identity,
        "source": task.source,
        "classes": list(task.classes),
        "amounts": None if labels is None else {"mean": labels.mean(), "deviation": labels.std(ddof=1)},
        "weights": design.weights,
        "arch": to_data(design.arch),
    }
    write_json(folder / _FILES[0], about)


def copy_classifier(source: Path, target: Path) -> None:
    """Copies a classifier's files, the small JSON file last."""
    with storage(target):
        target.mkdir(parents=True, exist_ok=True)
    for name in reversed(_FILES):
        write_atomic(target / name, (source / name).read_bytes())


def features_graph(design: Design, weights: Mapping[str, AnyArray]) -> bytes:
    """Exports ``design`` without its head: the graph's outputs are the last hidden states (B, T, D)."""
    from onnx import helper

    from chipwise.deploy.export.onnx import build, metadata

    model = build(design, weights, logits="all")
    graph = model.graph
    head = next(node for node in graph.node if "logits" in node.output)
    hidden = head.input[0]
    graph.node.remove(head)
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == hidden:
                    names[i] = "logits"
    used = {name for node in graph.node for name in node.input}
    for tensor in [item for item in graph.initializer if item.name not in used]:
        graph.initializer.remove(tensor)
    stored = {item.name for item in graph.initializer}
    for item in [item for item in graph.input if item.name in stored]:  # the tied table was for the removed head
        graph.input.remove(item)
    output = next(item for item in graph.output if item.name == "logits")
    output.type.tensor_type.shape.dim[2].dim_value = design.arch.d_model
    facts = metadata(design, "all") | {"vocab_size": design.arch.d_model, "output": "hidden states"}
    helper.set_model_props(model, {"chipwise": json.dumps(facts)})
    content: bytes = model.SerializeToString()
    return content
