"""Evaluates the TF-IDF baseline on a task.

The baseline is a linear model of scikit-learn on TF-IDF features of words: multinomial logistic regression for classes,
ridge regression for numbers. Its regularisation was tuned on the shipped tasks, which favours the baseline
(docs/how-to/tasks.md).
"""

from __future__ import annotations

import numpy as np

from chipwise.core.statistics import wilson_interval
from chipwise.errors import MissingExtra
from chipwise.training.evaluations.data import Task
from chipwise.training.evaluations.evaluate import TaskResult, score_answers

_INVERSE_DECAY = 30.0
_STEPS = 300


def baseline(task: Task) -> TaskResult:
    """The baseline's result on ``task``; for multiple choice, the chance level.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    if task.kind == "choice":
        return _chance(task)
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
    except ImportError:
        raise MissingExtra("scikit-learn", "tasks") from None
    words = TfidfVectorizer(sublinear_tf=True)
    train = words.fit_transform([item.text for item in task.train])
    held_out = words.transform([item.text for item in task.test])
    if task.kind == "regression":
        ridge = Ridge(alpha=1.0).fit(train, [float(item.label) for item in task.train])
        return score_answers(task, ridge.predict(held_out)[:, None], method="TF-IDF + ridge regression")
    model = LogisticRegression(C=_INVERSE_DECAY, max_iter=_STEPS).fit(train, [item.label for item in task.train])
    known = list(model.classes_)
    answers = np.full((len(task.test), len(task.classes)), -np.inf)
    answers[:, [task.classes.index(label) for label in known]] = model.predict_proba(held_out)
    return score_answers(task, answers, method="TF-IDF + logistic regression")


def _chance(task: Task) -> TaskResult:
    expected = sum(1 / len(question.options) for question in task.questions)
    low, high = wilson_interval(round(expected), len(task.questions))
    return TaskResult(
        task=task.name,
        metric="accuracy",
        method="chance",
        value=expected / len(task.questions),
        low=low,
        high=high,
        train_items=0,
        test_items=len(task.questions),
    )
