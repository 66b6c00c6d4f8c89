"""Calibrates a model for export, on the data of its run or on texts, to choose the best quantiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray
from chipwise.core.files import build
from chipwise.deploy.export.sources import Source
from chipwise.design.phases.one_model import data_of, opened, other_than_text
from chipwise.design.run.folder import won_by
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.quantize import Packing
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.calibration import Judge, Lessons
from chipwise.model.walk.module import MOST_ROWS, load, matrix_inputs, round_inputs
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import load_tokenizer
from chipwise.training.loop.evaluate import calibrated, lessons_of
from chipwise.training.loop.origin import data_spec

if TYPE_CHECKING:
    from torch import nn

TEXTS, TOKENS = 128, 128  # texts of each part (calibration, judging), and most tokens per text
_LOGITS_BYTES = 1 << 30  # most logits of the original that are kept for judging
POOL, LESSON = 4096, 8  # texts for learned rounding, and texts per batch
Data = str | Path | Sequence[str | Path] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The inputs of a model's matrices on calibration data, and functions for judging and training rounded weights.

    Attributes:
        packing: The inputs that the model's weight matrices receive on the calibration data.
        judge: Returns the loss of a model with rounded weights, on held-out data.
        lessons: Returns the model and the training data for learned rounding.
    """

    packing: Packing
    judge: Judge
    lessons: Callable[[], Lessons]


def calibration(source: Source, place: Path, data: Data, *, fp8: bool = False) -> Calibration | None:
    """Collects the inputs of a model's matrices, and builds a function that judges rounded weights on held-out data.

    With a run's data, that function returns the loss that training minimised; with texts, the mean divergence from the
    outputs of the model with unrounded weights.

    Args:
        source: The model.
        place: The folder or file that the model was read from.
        data: A run file, text files, or a text source. Default: the data of the run whose winner the model is. Texts
            are encoded by the model's own tokenizer.
        fp8: Whether the activations of the judged model are rounded to fp8 too.

    Returns:
        None if there is no data.

    Raises:
        InputError: The model has no tokenizer for texts, or does not fit the run's data.
    """
    prepare = round_inputs if fp8 else None
    if (run := won_by(place) if data is None else other_than_text(data)) is not None:
        task = opened(run, data_of(place, run), source.arch)
        file, recipe = task.data(source.arch), build(Recipe, dict(task.recipe))
        found = calibrated(source.arch, source.weights, file, recipe, prepare=prepare)
        learning = partial(lessons_of, source.arch, source.weights, file, recipe)
        return Calibration(packing=found[0], judge=found[1], lessons=learning)
    if data is None:
        return None
    if not isinstance(tokenizer := source.tokenizer, Path) or not source.arch.vocab_size:
        raise InputError(
            f"{place}: texts can calibrate only models with a tokenizer.json; give the model's run file with --data"
        )
    spec, base = data_spec([data] if isinstance(data, str | Path) else data)
    corpus = load_corpus(spec, base=base)
    longest = min(TOKENS, source.arch.max_tokens)
    given, judged = ([*_encoded(tokenizer, part, longest)] for part in (corpus.train, corpus.validation))
    logits = form_of(source.arch).outputs == "logits"
    if source.arch.causal:  # every token gives an input to every matrix, so fewer texts suffice
        given = _first(given, MOST_ROWS)
        judged = _first(judged, _LOGITS_BYTES // (4 * source.arch.vocab_size))

    def read(model: nn.Module) -> None:
        for each in given:
            _outputs(model, each)

    inputs = matrix_inputs(source.arch, source.weights, read)
    original = load(source.arch, source.weights)
    wanted = [_outputs(original, each) for each in judged]

    def judge(arch: ArchSpec, weights: Mapping[str, AnyArray]) -> float:
        model = load(arch, weights) if prepare is None else prepare(load(arch, weights))
        pairs = zip((_outputs(model, each) for each in judged), wanted, strict=True)
        return float(np.mean([_divergence(found, theirs, logits=logits) for found, theirs in pairs]))

    def lessons() -> Lessons:
        pool = [*_encoded(tokenizer, corpus.train, longest, most=POOL)]
        batch = partial(_lesson, pool, rows_of=longest if source.arch.causal else None)
        return Lessons(original=original, batch=batch, logits=logits)

    return Calibration(packing=Packing(inputs=inputs), judge=judge, lessons=lessons)


def _first(texts: Sequence[npt.NDArray[np.int64]], tokens: int) -> list[npt.NDArray[np.int64]]:
    """The first texts, as many as are needed to reach ``tokens`` tokens in total."""
    ends = np.cumsum([each.shape[1] for each in texts])
    return list(texts[: 1 + int(np.searchsorted(ends, tokens))])


def _lesson(
    pool: Sequence[npt.NDArray[np.int64]], number: int, *, rows_of: int | None
) -> Sequence[npt.NDArray[np.int64]]:
    """Training batch ``number``: random texts of ``pool``, each (1, T).

    If ``rows_of`` is given, the texts are joined and cut into rows of ``rows_of`` tokens.
    """
    found = [pool[i] for i in np.random.default_rng([0, number]).integers(len(pool), size=LESSON)]
    if rows_of is None:
        return found
    stream = np.concatenate(found, axis=1)
    rows = stream.shape[1] // rows_of
    return [stream[:, : rows * rows_of].reshape(rows, rows_of) if rows else stream]


def _outputs(model: nn.Module, tokens: npt.NDArray[np.int64]) -> AnyArray:
    """The model's outputs for one text."""
    import torch

    with torch.no_grad():
        found = model(torch.from_numpy(tokens))
    return np.asarray((found[0] if isinstance(found, tuple) else found).numpy())


def _encoded(
    tokenizer_path: Path, texts: Sequence[str], longest: int, *, most: int = TEXTS
) -> Iterator[npt.NDArray[np.int64]]:
    """Encodes at most ``most`` of the ``texts``, evenly spaced, as tokens (1, T); skips texts with fewer than 2."""
    tokenizer = load_tokenizer(tokenizer_path)
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    for i in np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(int):
        if len(ids := tokenizer.encode(texts[i]).ids) > 1:
            yield np.array([ids], np.int64)


def _divergence(found: AnyArray, wanted: AnyArray, *, logits: bool) -> float:
    """Divergence from ``wanted``: the mean KL divergence in nats for logits, else the relative squared error."""
    if not logits:
        return float(np.square(found - wanted).sum() / np.square(wanted).sum())
    ours, theirs = (x - x.max(axis=-1, keepdims=True) for x in (found.astype(np.float64), wanted.astype(np.float64)))
    ours, theirs = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (ours, theirs))
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean())
