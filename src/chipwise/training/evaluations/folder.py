"""Evaluates a folder's model and the TF-IDF baseline on a task; implements ``chipwise evaluate``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.core.extras import require
from chipwise.errors import UnknownName
from chipwise.training.data.tokenizer import load_tokenizer
from chipwise.training.evaluations.classifier import FOLDER, Classifier
from chipwise.training.evaluations.data import KINDS, METHODS, load_task
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.origin import read_origin, require_weights

if TYPE_CHECKING:
    from chipwise.training.evaluations.evaluate import TaskResult


def evaluate_folder(
    model: str | Path,
    task: str | Path,
    *,
    kind: Any = None,
    method: Any = None,
    with_baseline: bool = True,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[TaskResult, TaskResult | None]:
    """Evaluates a folder's model and the baseline on a task; returns both results. See :func:`chipwise.api.evaluate`.

    If the folder contains a classifier that was tuned on the task's training items, this classifier is evaluated,
    unless ``method`` is given. Missing packages are reported before any item is read.
    """
    for option, value, known in (("kind", kind, KINDS), ("method", method, METHODS)):
        if value is not None and value not in known:
            raise UnknownName(option, value, known)
    folder = require_weights(model, purpose="a task")
    if with_baseline:
        require("sklearn")
    wanted = load_task(task, kind=kind)

    from chipwise.training.evaluations.baseline import baseline
    from chipwise.training.evaluations.evaluate import evaluate_task, score_answers

    reference = baseline(wanted) if with_baseline else None
    shipped = folder / FOLDER / wanted.name
    if method is None and (shipped / "classifier.json").is_file():
        classifier = Classifier(shipped)
        if classifier.knows(wanted):
            scores = classifier.scores([item.text for item in wanted.test])
            return score_answers(
                wanted, scores, method="tune", judged=f"shipped classifier: {classifier.judged}"
            ), reference
    origin = read_origin(folder)
    weights, path = origin.trained()
    network, tokenizer = load_model(origin.arch, weights), load_tokenizer(path)
    return evaluate_task(network, tokenizer, wanted, method=method, on_progress=on_progress), reference
