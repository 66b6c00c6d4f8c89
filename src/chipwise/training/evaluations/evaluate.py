"""Evaluates a model on a task: a score on held-out items with its interval, and the confusion matrix.

Classes and numbers are predicted from the model's last hidden states. The method ``probe`` keeps the model fixed and
trains one linear layer; ``tune`` trains a copy of the model together with this layer for a fixed number of epochs. In
multiple choice, the model selects the option with the highest likelihood per byte. Results are deterministic. Axes: I
items, T tokens, D width, C classes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chipwise.core.statistics import Z95, wilson_interval
from chipwise.errors import InputError, TrainingDiverged
from chipwise.model.kinds.text.module import Transformer
from chipwise.training.evaluations.data import METHODS as METHODS
from chipwise.training.evaluations.data import ChoiceQuestion, Method, Task, encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AS_THEY_ARE = "unquantised weights, in torch"
_ROWS = 64  # texts at a time
_DECAY = 1e-3  # L2 penalty of the probe's matrix
_PROBE_STEPS = 60
_TUNE_PASSES = 6
_TUNE_ROWS = 32  # texts per step
_TIMED_STEPS = 20  # steps after which the number that a budget allows is known
_TUNE_RATE = 2e-3
_HEAD_RATE = 1e-2
_LEAST = 0.1  # floor of a feature's deviation, as a share of the mean deviation
_TUNE_S_PER_BYTE = 1.8e-5  # CPU seconds per byte and pass for a model of 1.5 million parameters (docs/how-to/tasks.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of one model or baseline on the held-out items of a task."""

    task: str
    metric: Literal["accuracy", "spearman"]
    method: str
    value: float
    low: float  # lower end of the 95 % interval over items
    high: float
    train_items: int
    test_items: int
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()  # [true class][answered class], counts
    judged: str = ""  # which version of the model was evaluated, such as its weight format


def evaluate_task(
    model: Transformer,
    tokenizer: Tokenizer,
    task: Task,
    *,
    method: Method | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TaskResult:
    """Evaluates ``model`` on ``task``; the model itself is not changed.

    Args:
        model: A decoder with its weights.
        tokenizer: The ``tokenizers.Tokenizer`` that belongs to the model.
        task: A task from :func:`chipwise.training.evaluations.data.load_task`.
        method: ``probe`` or ``tune``. Default: ``tune``. Questions are always answered by likelihood.
        on_progress: Called with the number of finished steps and the total number of steps.

    Raises:
        InputError: The tokenizer's vocabulary differs from the model's, or the method does not apply to the task.
        TrainingDiverged: The loss of the tuned copy was no longer finite.
    """
    if (task.kind == "choice") != (method == "likelihood") and method is not None:
        raise InputError(f"{task.name} is a {task.kind} task, to which the method {method!r} does not apply")
    if task.kind == "choice":
        _check(model, tokenizer)
        return _answered(task, [_likeliest(model, tokenizer, question) for question in task.questions])
    chosen = method or "tune"
    tuned, head = learn(model, tokenizer, task, method=chosen, on_progress=on_progress)
    held_out = [encode(tokenizer, item.text, model.arch.max_tokens) for item in task.test]
    with torch.no_grad():
        answers = head(pooled(tuned, held_out))
    return score_answers(task, answers.numpy(), method=chosen, judged=AS_THEY_ARE)


def expected_cpu_s(task: Task) -> float:
    """Expected CPU seconds to tune and evaluate one small model on ``task``; 0 for questions."""
    return _TUNE_PASSES * _TUNE_S_PER_BYTE * sum(len(item.text.encode()) for item in task.train)


def learn(
    model: Transformer,
    tokenizer: Tokenizer,
    task: Task,
    *,
    method: Method = "tune",
    cpu_s: float | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Transformer, Head]:
    """Trains a copy of ``model`` on ``task``, and returns the copy with its linear head. See :func:`evaluate_task`.

    Args:
        cpu_s: CPU seconds that tuning may take. With little time, tuning makes fewer passes over the items, but at
            least one. None: no limit.

    Raises:
        InputError: The tokenizer's vocabulary differs from the model's, or a weight is not finite.
        TrainingDiverged: The loss of the tuned copy was no longer finite.
    """
    _check(model, tokenizer)
    model = copy.deepcopy(model).eval()
    texts = [encode(tokenizer, item.text, model.arch.max_tokens) for item in task.train]
    targets = _targets(task)
    head = _probe(pooled(model, texts), targets)
    if method == "tune":
        _tune(model, head, texts, targets, cpu_s, on_progress)
    return model, head


def _check(model: Transformer, tokenizer: Tokenizer) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise InputError("the model has weights that are not finite; train it again, at lower learning rates")
    if tokenizer.get_vocab_size() > model.arch.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model has {model.arch.vocab_size}; give "
            "the model's own tokenizer"
        )


def score_answers(task: Task, answers_IC: NDArray[np.floating], *, method: str, judged: str = "") -> TaskResult:
    """Computes the result on the held-out items from class scores (I, C) or predicted numbers (I, 1)."""
    count, classes = len(task.test), task.classes
    confusion = np.zeros((len(classes), len(classes)), int)
    metric: Literal["accuracy", "spearman"]
    if task.kind == "regression":
        metric, value = "spearman", spearman(answers_IC[:, 0], np.array([float(item.label) for item in task.test]))
        low, high = fisher(value, count)
    else:
        for item, scores in zip(task.test, answers_IC, strict=True):
            confusion[classes.index(item.label), int(np.argmax(scores))] += 1
        right = int(np.trace(confusion))
        metric, value, (low, high) = "accuracy", right / count, wilson_interval(right, count)
    return TaskResult(
        task=task.name,
        metric=metric,
        method=method,
        value=value,
        low=low,
        high=high,
        train_items=len(task.train),
        test_items=count,
        classes=classes,
        confusion=tuple(map(tuple, confusion.tolist())),
        judged=judged,
    )


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's rank correlation; tied values get their mean rank. 0 if ``a`` or ``b`` is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) for values in (a, b)]
    if any(rank.std() == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def fisher(correlation: float, items: int) -> tuple[float, float]:
    """The 95 % interval of a rank correlation that was computed from ``items`` items.

    References:
        Fieller, Hartley & Pearson 1957, Biometrika 44:470 (the variance 1.06 / (n - 3)).
    """
    middle = math.atanh(max(-0.999999, min(0.999999, correlation)))
    half = Z95 * math.sqrt(1.06 / (items - 3))
    return math.tanh(middle - half), math.tanh(middle + half)


def pooled(model: Transformer, texts: Sequence[list[int]]) -> Tensor:
    """Features of each text, (I, 3 D): mean, maximum and last value of the last hidden states over all tokens."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # texts of similar length together: little padding
    read = torch.empty(len(texts), 3 * model.arch.d_model)
    with torch.no_grad():
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            read[rows] = _pool(model, [texts[i] for i in rows])
    return read


def _pool(model: Transformer, texts: Sequence[list[int]]) -> Tensor:
    lengths = torch.tensor([len(text) for text in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()), dtype=torch.long)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    hidden, _ = model.hidden(tokens)  # causal: padding after a text does not change its hidden states
    inside = (torch.arange(tokens.shape[1]) < lengths[:, None])[..., None]
    mean = (hidden * inside).sum(1) / lengths[:, None]
    largest = hidden.masked_fill(~inside, -math.inf).amax(1)
    return torch.cat((mean, largest, hidden[torch.arange(len(texts)), lengths - 1]), dim=1)


class Head(nn.Module):
    """A linear layer on standardised features; for regression, the targets are standardised too.

    Each feature is divided by its standard deviation, or by 10 % of all features' mean standard deviation if that is
    larger. Otherwise a nearly constant feature would dominate once tuning changes it.
    """

    def __init__(self, features_IF: Tensor, outputs: int) -> None:
        super().__init__()
        deviation = features_IF.std(0)
        self.mean, self.deviation = features_IF.mean(0), deviation.clamp(min=_LEAST * float(deviation.mean()) + 1e-6)
        self.linear = nn.Linear(features_IF.shape[1], outputs)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features_IF: Tensor) -> Tensor:
        """Class scores (I, C), or predicted numbers (I, 1)."""
        answers: Tensor = self.linear((features_IF - self.mean) / self.deviation)
        return answers


def _targets(task: Task) -> Tensor:
    """Class indices (I,); for regression, standardised numbers (I, 1), which suffice because only ranks are scored."""
    if task.kind == "regression":
        amounts = torch.tensor([[float(item.label)] for item in task.train])
        return (amounts - amounts.mean()) / amounts.std()
    number = {label: i for i, label in enumerate(task.classes)}
    return torch.tensor([number[item.label] for item in task.train])


def _loss(answers: Tensor, targets: Tensor) -> Tensor:
    amounts = targets.is_floating_point()
    return nn.functional.mse_loss(answers, targets) if amounts else nn.functional.cross_entropy(answers, targets)


def _probe(features_IF: Tensor, targets: Tensor) -> Head:
    """Fits the linear head by a quasi-Newton method, starting from zero."""
    outputs = 1 if targets.is_floating_point() else int(targets.max()) + 1
    head = Head(features_IF, outputs)
    newton = torch.optim.LBFGS(head.parameters(), max_iter=_PROBE_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        newton.zero_grad()
        loss = _loss(head(features_IF), targets) + _DECAY * head.linear.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    newton.step(closure)  # type: ignore[no-untyped-call]
    return head


def probed(task: Task, train_IF: NDArray[np.floating], held_out_IF: NDArray[np.floating]) -> NDArray[np.floating]:
    """Trains a linear probe on given features; returns class scores (I, C) or numbers (I, 1) of the held-out items."""
    learnt, held_out = (torch.from_numpy(np.asarray(values, np.float32)) for values in (train_IF, held_out_IF))
    head = _probe(learnt, _targets(task))
    with torch.no_grad():
        answers: NDArray[np.floating] = head(held_out).numpy()
    return answers


def _tune(
    model: Transformer,
    head: Head,
    texts: Sequence[list[int]],
    targets: Tensor,
    cpu_s: float | None,
    on_progress: Callable[[int, int], None],
) -> None:
    """Trains model and head together; the learning rate falls to zero by the last step."""
    groups = [
        {"params": [*model.parameters()], "lr": _TUNE_RATE},
        {"params": [*head.parameters()], "lr": _HEAD_RATE},
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    one_pass = math.ceil(len(texts) / _TUNE_ROWS)
    steps, begun_s = _TUNE_PASSES * one_pass, time.process_time()
    falling = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps))
    done, lengths = 0, np.array([len(text) for text in texts])
    for number in range(_TUNE_PASSES):
        for rows in _alike(lengths, np.random.default_rng(number)):
            if cpu_s is not None and done == _TIMED_STEPS:
                allowed = _TIMED_STEPS * cpu_s / max(time.process_time() - begun_s, 1e-9)
                steps = int(max(one_pass, done, min(steps, allowed)))
            if done == steps:
                return
            loss = _loss(head(_pool(model, [texts[i] for i in rows])), targets[rows])
            if not torch.isfinite(loss):
                raise TrainingDiverged(
                    f"the loss was no longer finite at step {done} of tuning; use method 'probe' (--method probe)"
                )
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            falling.step()
            done += 1
            on_progress(done, steps)


def _alike(lengths: NDArray[np.integer], random: np.random.Generator) -> list[list[int]]:
    """Batches of texts of similar length, in random order."""
    order = np.lexsort((random.random(len(lengths)), lengths + random.integers(0, 8, len(lengths))))
    batches = [order[start : start + _TUNE_ROWS].tolist() for start in range(0, len(order), _TUNE_ROWS)]
    random.shuffle(batches)
    return batches


def _likeliest(model: Transformer, tokenizer: Tokenizer, question: ChoiceQuestion) -> bool:
    """Whether the right option is the one with the highest likelihood per byte, given the question."""
    scores = []
    for option in question.options:
        ahead = [0, *tokenizer.encode(question.text, add_special_tokens=False).ids]
        behind = tokenizer.encode(f" {option}", add_special_tokens=False).ids
        room = model.arch.max_tokens + 1 - len(behind)
        if room < 1:
            raise InputError(f"the option {option[:40]!r}… is longer than the model's {model.arch.max_tokens} tokens")
        ids = torch.tensor([[*ahead[-room:], *behind]])
        with torch.no_grad():
            logits, _ = model(ids[:, :-1])
        nats = -nn.functional.cross_entropy(logits[0, -len(behind) :], ids[0, -len(behind) :], reduction="sum")
        scores.append(float(nats) / len(option.encode()))
    return int(np.argmax(scores)) == question.answer


def _answered(task: Task, right: Sequence[bool]) -> TaskResult:
    low, high = wilson_interval(sum(right), len(right))
    return TaskResult(
        task=task.name,
        metric="accuracy",
        method="likelihood",
        value=sum(right) / len(right),
        low=low,
        high=high,
        train_items=0,
        test_items=len(right),
        judged=AS_THEY_ARE,
    )
