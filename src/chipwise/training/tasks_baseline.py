"""What a bag of words reaches on a task: the bar that a transformer must earn.

TF-IDF of words and multinomial logistic regression (ridge regression for amounts), as scikit-learn has them. The
regularisation was chosen on the shipped tasks, in the bag's favour (docs/how-to/tasks.md).
"""

from __future__ import annotations

import numpy as np

from chipwise.core.errors import MissingExtra
from chipwise.core.statistics import wilson_interval
from chipwise.training.tasks import TaskResult, judge
from chipwise.training.tasks_data import Task

_INVERSE_DECAY = 30.0
_STEPS = 300


def baseline(task: Task) -> TaskResult:
    """TF-IDF and a linear model on ``task``; chance where it is multiple choice.

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
    learnt = words.fit_transform([item.text for item in task.train])
    asked = words.transform([item.text for item in task.test])
    if task.kind == "regression":
        ridge = Ridge(alpha=1.0).fit(learnt, [float(item.label) for item in task.train])
        return judge(task, ridge.predict(asked)[:, None], method="TF-IDF + ridge regression")
    model = LogisticRegression(C=_INVERSE_DECAY, max_iter=_STEPS).fit(learnt, [item.label for item in task.train])
    known = list(model.classes_)
    answers = np.full((len(task.test), len(task.classes)), -np.inf)
    answers[:, [task.classes.index(label) for label in known]] = model.predict_proba(asked)
    return judge(task, answers, method="TF-IDF + logistic regression")


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
