"""Expected quality of a design on a run's data, by a scaling law fitted to the run's trainings."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from chipwise.core.record import Record
from chipwise.design.report.record import RunRecord, load
from chipwise.errors import InputError, StudyError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.laws.laws import ExpectedQuality
from chipwise.training.laws.scaling import Trainings
from chipwise.training.tasks.protocol import task_named

FEWEST = 8  # fewest trainings to fit a law with six constants


def fitted_quality(arch: ArchSpec, *, tokens: float, run: str | Path) -> ExpectedQuality:
    """Expected loss of ``arch`` on the data of ``run`` after ``tokens`` of training.

    For text it is in bits per byte. For another task it is the metric as a loss (such as 1 minus an accuracy), and
    ``tokens`` are positions of training.

    Args:
        arch: A model with a vocabulary of that text; its bytes per token are interpolated between the run's
            vocabularies.
        tokens: Training tokens, repeats included; for another task, positions of its examples.
        run: The folder of a search.

    Raises:
        StudyError: The folder holds no record, or too few trainings.
        InputError: Tokens are not positive.
    """
    if not 0 < tokens < math.inf:
        raise InputError(f"{tokens:g} tokens of training: give a positive number")
    path = Path(run) / "record.json"
    if not path.is_file():
        raise StudyError(f"{run}: this folder holds no record of a run; give a folder such as runs/clinic")
    record = load(path)
    held, vocabularies = _trainings(record)
    metric, text = task_named(record.task).metric, record.task == "text"
    if len(held) < FEWEST:
        raise StudyError(f"{run}: {len(held)} finished trainings are too few to fit a law to; {FEWEST} are needed")
    sizes = sorted(vocabularies)
    outputs = max(arch.outputs, 1)
    amount = tokens * float(np.interp(math.log(outputs), np.log(sizes), [vocabularies[s] for s in sizes]))
    head = float(outputs * arch.d_model)
    layers = max(1.0, arch.parameters() - head * (1 if arch.tie_embeddings else 2))
    notes = [
        f"{what} {value:.3g} is outside the run's own trainings, {of.min():.3g} to {of.max():.3g}"
        for what, value, of in (
            ("parameters in layers", layers, held.layers),
            ("parameters of the head", head, held.head),
            ("text in bytes" if text else "positions of training", amount, held.text_bytes),
        )
        if not of.min() <= value <= of.max()
    ]
    return ExpectedQuality(
        loss=held.expect(layers, head, amount, seed=0),
        unit="bits/byte" if text else f"1 less {metric.title}" if metric.more_is_better else metric.title,
        source=f"{len(held)} trainings of {run}",
        basis=f"predicted, fitted to {len(held)} trainings of {run}, its own {'text' if text else 'data'}",
        parameters=float(arch.parameters()),
        tokens=tokens,
        notes=tuple(notes),
    )


def _trainings(record: RunRecord) -> tuple[Trainings, dict[int, float]]:
    """Trainings of the run, and bytes per token by vocabulary; 1 for other tasks."""
    rows, vocabularies, text = [], {}, record.task == "text"
    for trial in record.trials:
        if not trial.loss or (text and not trial.perplexity) or not trial.parameters or not trial.curve:
            continue
        choices = Record(trial.choices)
        vocabulary = choices.get("vocab_size", int)
        bytes_per_token = math.log2(trial.perplexity) / trial.loss if text and trial.perplexity else 1.0
        vocabularies[vocabulary] = bytes_per_token
        head = vocabulary * choices.get("d_model", int)
        layers = trial.parameters - head * (1 if choices.get("tie_embeddings", bool) else 2)
        rows.append((layers, head, trial.curve[-1].tokens * bytes_per_token, trial.loss))
    columns = np.array(rows, float).reshape(-1, 4).T
    names = ("layers", "head", "text_bytes", "loss")
    return Trainings(**dict(zip(names, columns, strict=True))), vocabularies
