"""Metrics of ``quantised_files.py`` for ``chipwise quantize --metric``: more is better."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from chipwise.training.tasks.transcripts.dataset import distance

Arrays = Mapping[str, Sequence[np.ndarray]]


def cosine(outputs: Arrays, data: Arrays) -> float:
    """Mean cosine between the mean-pooled embedding of a text and the original's."""
    found = []
    for hidden, mask, reference in zip(
        outputs["last_hidden_state"], data["attention_mask"], data["reference"], strict=True
    ):
        weight = mask[0][:, None]
        pooled = (hidden[0] * weight).sum(0) / weight.sum()
        found.append(pooled @ reference / np.linalg.norm(pooled) / np.linalg.norm(reference))
    return float(np.mean(found))


def characters(outputs: Arrays, data: Arrays) -> float:
    """Share of right characters: 1 minus edits over characters of all lines; greedy decoding."""
    alphabet = ["", *json.loads(str(data["alphabet"][0])), " "]
    (scores,) = outputs.values()
    edits = length = 0
    for item, line in zip(scores, data["line"], strict=True):
        best = item[0].argmax(-1)
        kept = best[np.concatenate([[True], best[1:] != best[:-1]])]
        read = "".join(alphabet[i] for i in kept if i)
        edits += distance(read, str(line))
        length += len(str(line))
    return 1 - edits / length


def labels(outputs: Arrays, data: Arrays) -> float:
    """Share of files that get the original's label."""
    (scores,) = outputs.values()
    return float(np.mean([item[0].argmax() == label for item, label in zip(scores, data["label"], strict=True)]))


def speech(outputs: Arrays, data: Arrays) -> float:
    """Share of frames that are rightly called speech or not."""
    found = [float(item.ravel()[0]) > 0.5 for item in outputs["output"]]
    return float(np.mean([a == bool(b) for a, b in zip(found, data["speech"], strict=True)]))
