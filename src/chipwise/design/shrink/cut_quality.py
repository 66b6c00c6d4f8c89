"""Quality of an original and its cuts, computed with exported files: on test text, and on the user's tasks.

An encoder's cut is good where it finds texts as alike as the original does; a decoder is scored in bits per byte of
test text. Tasks are answered by one matrix on a model's embedding of a text: nothing of the model is tuned, so that
what is lost in cutting is not trained away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.deploy.export.onnx import export
from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder, OnnxRuntimeSession
from chipwise.design.shrink.sizes import generates
from chipwise.model.arch.design import Design
from chipwise.training.data.tokenizer import load_tokenizer
from chipwise.training.evaluations.data import Method, Task
from chipwise.training.evaluations.evaluate import evaluate_task, fisher, probed, score_answers, spearman
from chipwise.training.loop.evaluate import load_model, quantised
from chipwise.training.tasks.exported_text import nats_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAIRS, TEXTS = 400, 200  # of held-out texts at most: for an encoder, for a decoder
LONGEST = 128  # tokens of a task's text
OnProgress = Callable[[int, int], None]


def likeness(path: Path, original: Path, tokenizer: Path, texts: Sequence[str], *, longest: int) -> dict[str, object]:
    """Rank correlation of the cosines of held-out pairs of texts, each text in one pair, with the original's cosines.

    The fields of a :class:`chipwise.design.report.record.TaskScore`.
    """
    used = texts[: 2 * min(PAIRS, len(texts) // 2)]
    cosines = []
    for file in (path, original):
        found = embedded(file, tokenizer, used, longest=longest)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        cosines.append((found[::2] * found[1::2]).sum(1))
    value = spearman(*cosines)
    low, high = fisher(value, len(cosines[0]))
    return {
        "metric": "spearman",
        "method": "cosines",
        "value": value,
        "low": low,
        "high": high,
        "test_items": len(cosines[0]),
        "judged": "exported graph",
    }


def embedded(
    path: Path,
    tokenizer: Path,
    texts: Sequence[str],
    *,
    longest: int,
    on_progress: OnProgress = lambda done, total: None,
) -> NDArray[np.float64]:
    """An exported encoder's embeddings (I, D) of ``texts``."""
    session = OnnxEncoder(path)
    divide = _tokenizer(tokenizer, min(longest, session.facts["max_tokens"]))
    rows = []
    for number, text in enumerate(texts):
        rows.append(session.encode(np.array([divide.encode(text).ids], np.int64))[0])
        on_progress(number + 1, len(texts))
    return np.array(rows, np.float64)


def bits_per_byte(
    design: Design, weights: Mapping[str, AnyArray], tokenizer: Path, texts: Sequence[str], *, longest: int, path: Path
) -> float:
    """Bits that an exported decoder takes for a byte of held-out texts, each read on its own; special tokens are free.

    Args:
        design: What is exported.
        weights: Its weights.
        tokenizer: The model's.
        texts: The first of them are read.
        longest: Tokens of each that are read.
        path: Temporary place of the graph with the logits of every position.
    """
    divide = _tokenizer(tokenizer, min(longest, design.arch.max_tokens))
    export(design, weights, path, logits="all")
    nats = size_bytes = 0.0
    try:
        session = OnnxRuntimeSession(path, capacity=min(longest, design.arch.max_tokens))
        for text in texts[:TEXTS]:
            found = divide.encode(text)
            scored = [i for i, special in enumerate(found.special_tokens_mask) if i and not special]
            if not scored:
                continue
            ids = np.array(found.ids, np.int64)
            took = nats_of(session.all_logits(ids[None, :-1])[0], ids[1:])
            nats += float(took[[i - 1 for i in scored]].sum())
            size_bytes += len(text[found.offsets[scored[0]][0] : found.offsets[scored[-1]][1]].encode())
    finally:
        path.unlink(missing_ok=True)
    return nats / math.log(2) / size_bytes


def task_score(
    task: Task,
    design: Design,
    weights: Mapping[str, AnyArray],
    path: Path,
    tokenizer: Path,
    *,
    on_progress: OnProgress = lambda done, total: None,
) -> dict[str, object]:
    """The score of a model on the held-out items of ``task``: fields of
    :class:`chipwise.training.evaluations.evaluate.TaskResult`."""
    if generates(design.arch):
        model = quantised(load_model(design.arch, weights), design.weights)
        method: Method = "likelihood" if task.kind == "choice" else "probe"
        found = plain(evaluate_task(model, _tokenizer(tokenizer, None), task, method=method))
        return {**found, "judged": f"weights rounded to {design.weights}, in torch"}
    texts = [item.text for item in (*task.train, *task.test)]
    features = embedded(path, tokenizer, texts, longest=LONGEST, on_progress=on_progress)
    answers = probed(task, features[: len(task.train)], features[len(task.train) :])
    found = plain(score_answers(task, answers, method="probe", judged="exported graph"))
    return dict(found)


def _tokenizer(path: Path, longest: int | None) -> Tokenizer:
    found: Tokenizer = load_tokenizer(path)
    found.no_padding()
    if longest is None:
        found.no_truncation()
    else:
        found.enable_truncation(longest)
    return found
