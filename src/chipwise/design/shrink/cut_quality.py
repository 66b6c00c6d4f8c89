"""Evaluates exported models, the original and those pruned from it, on test text and on the user's tasks.

A pruned encoder is scored by how well its similarities between texts agree with those of the original; a decoder is
scored by bits per byte of test text. Tasks are evaluated with a linear probe on the model's embeddings. The model
itself is not fine-tuned, because this could hide the loss caused by pruning.
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

PAIRS, TEXTS = 400, 200  # at most: held-out pairs of texts for an encoder, and texts for a decoder
LONGEST = 128  # tokens of a text in a task
OnProgress = Callable[[int, int], None]


def likeness(path: Path, original: Path, tokenizer: Path, texts: Sequence[str], *, longest: int) -> dict[str, object]:
    """Rank correlation between the cosine similarities of held-out text pairs in a pruned model and in the original.

    Returns the fields of a :class:`chipwise.design.report.record.TaskScore`. Each text is in only one pair.
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
    """Embeddings of ``texts`` by an exported encoder, one row per text."""
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
    """An exported decoder's bits per byte on held-out texts, each read separately; special tokens do not count.

    Args:
        design: The design to export.
        weights: The model's weights.
        tokenizer: The model's tokenizer.
        texts: Texts, of which only the first ``TEXTS`` are used.
        longest: Largest number of tokens per text.
        path: Temporary file for a graph that outputs logits at every position.
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
    """The score of a model on the held-out items of ``task``, as fields of a
    :class:`chipwise.training.evaluations.evaluate.TaskResult`.
    """
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
