"""Calibration data of a model that is exported, that of its run or texts, and the quantiser chosen by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray
from chipwise.core.files import build, read_json
from chipwise.deploy.export.sources import Source
from chipwise.design.phases.one_model import data_of, opened, other_than_text
from chipwise.design.run.folder import holds_run
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import any_spec
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

TEXTS, TOKENS = 128, 128  # texts of each part, and most tokens of a text
_LOGITS_BYTES = 1 << 30  # most logits of the original that are kept to judge by
POOL, LESSON = 4096, 8  # texts of learned rounding, and of a batch of it
Data = str | Path | Sequence[str | Path] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A model on calibration data.

    Attributes:
        packing: The inputs of its matrices.
        judge: The loss of rounded weights on other data.
        lessons: Returns this model and training data for learned rounding.
    """

    packing: Packing
    judge: Judge
    lessons: Callable[[], Lessons]


def calibration(source: Source, place: Path, data: Data, *, fp8: bool = False) -> Calibration | None:
    """The inputs of a model's matrices on calibration data, and the loss of rounded weights on other data.

    For a run's data the loss is that of training; for texts it is the mean divergence from the original's outputs.

    Args:
        source: The model.
        place: The folder or file that it was read from.
        data: A run file, text files, or a text source; None: the data of the run that the model won. A text model's
            own tokenizer encodes texts.
        fp8: Whether the judged model also rounds activations to fp8.

    Returns:
        None if there is no data.

    Raises:
        InputError: The model has no tokenizer for texts, or does not fit the run's data.
    """
    prepare = round_inputs if fp8 else None
    if (run := _run_of(place, data)) is not None:
        task = opened(run, data_of(place, run), source.arch)
        file, recipe = task.data(source.arch), build(Recipe, dict(task.recipe))
        found = calibrated(source.arch, source.weights, file, recipe, prepare=prepare)
        learning = partial(lessons_of, source.arch, source.weights, file, recipe)
        return Calibration(packing=found[0], judge=found[1], lessons=learning)
    if data is None:
        return None
    if not isinstance(tokenizer := source.tokenizer, Path) or not source.arch.vocab_size:
        raise InputError(f"{place}: texts calibrate models with a tokenizer.json; give its run file with --data")
    spec, base = data_spec([data] if isinstance(data, str | Path) else data)
    corpus = load_corpus(spec, base=base)
    longest = min(TOKENS, source.arch.max_tokens)
    given, judged = ([*_encoded(tokenizer, part, longest)] for part in (corpus.train, corpus.validation))
    logits = form_of(source.arch).outputs == "logits"
    if source.arch.causal:  # every matrix has an input for every token
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
    """The first texts that have so many tokens together, and at least one."""
    ends = np.cumsum([each.shape[1] for each in texts])
    return list(texts[: 1 + int(np.searchsorted(ends, tokens))])


def _lesson(
    pool: Sequence[npt.NDArray[np.int64]], number: int, *, rows_of: int | None
) -> Sequence[npt.NDArray[np.int64]]:
    """The batch of this number: texts (1, T) of ``pool``, or joined texts in rows of so many tokens."""
    found = [pool[i] for i in np.random.default_rng([0, number]).integers(len(pool), size=LESSON)]
    if rows_of is None:
        return found
    stream = np.concatenate(found, axis=1)
    rows = stream.shape[1] // rows_of
    return [stream[:, : rows * rows_of].reshape(rows, rows_of) if rows else stream]


def _outputs(model: nn.Module, tokens: npt.NDArray[np.int64]) -> AnyArray:
    """The model's outputs of one text."""
    import torch

    with torch.no_grad():
        found = model(torch.from_numpy(tokens))
    return np.asarray((found[0] if isinstance(found, tuple) else found).numpy())


def _run_of(place: Path, data: Data) -> RunSpec | None:
    """The run in the run file ``data`` if its task is not text; without data, the run that the model won."""
    if (named := other_than_text(data)) is not None:
        return named
    home = Path(os.path.realpath(place)).parent
    if data is not None or not holds_run(home) or not (home / "spec.json").is_file():
        return None
    held = read_json(home / "spec.json")
    found = any_spec(held.get("spec") if isinstance(held, dict) else None, file=str(home / "spec.json"))
    return found if isinstance(found, RunSpec) else None


def _encoded(
    tokenizer_path: Path, texts: Sequence[str], longest: int, *, most: int = TEXTS
) -> Iterator[npt.NDArray[np.int64]]:
    """Tokens (1, T) of at most so many texts, spread evenly over ``texts``."""
    tokenizer = load_tokenizer(tokenizer_path)
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    for i in np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(int):
        if len(ids := tokenizer.encode(texts[i]).ids) > 1:
            yield np.array([ids], np.int64)


def _divergence(found: AnyArray, wanted: AnyArray, *, logits: bool) -> float:
    """Mean KL divergence in nats of distributions from logits; of other outputs the relative squared difference."""
    if not logits:
        return float(np.square(found - wanted).sum() / np.square(wanted).sum())
    ours, theirs = (x - x.max(axis=-1, keepdims=True) for x in (found.astype(np.float64), wanted.astype(np.float64)))
    ours, theirs = (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)) for x in (ours, theirs))
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean())
