"""``chipwise evaluate``: scores a model on a task, next to a TF-IDF baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import json_of, print_table, progress_bar, put
from chipwise.core import units
from chipwise.core.layout import Column, Table


def command(
    model: Annotated[str, typer.Argument(help="A folder with weights and tokenizer, such as a winner's.")],
    task: Annotated[
        str, typer.Option(help="organ-system, chapters, a .csv or .jsonl file of text and labels, or a run file")
    ],
    kind: Annotated[
        str | None,
        typer.Option(help="Kind of label: classification or regression. Default: recognised from the file."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="tune (train a copy of the model on the task) or probe (train one matrix). Default: the folder's "
            "classifier for this task, if there is one, else tune."
        ),
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Also run a TF-IDF baseline (needs scikit-learn).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print both results as JSON.")] = False,
) -> None:
    """Evaluate a model on held-out items of a task: accuracy with its 95 % interval, and the confusion matrix.

    Text: chipwise evaluate runs/clinic/winner --task organ-system

    Images, speech, series: chipwise evaluate runs/vision/winner --task vision.yaml
    """
    with progress_bar("tuning", quiet=as_json) as advance:
        reached, reference = api.evaluate(
            model, task, kind=kind, method=method, with_baseline=baseline, on_progress=advance
        )
    if isinstance(reached, answers.TaskScore):
        if as_json:
            json_of({"model": reached})
        else:
            put(f"{model}: {reached.metric} {reached.shown} on the test data of {reached.task}, 95 % interval")
        return
    if as_json:
        json_of({"model": reached, "baseline": reference})
        return
    _print(model, reached, reference)


def _print(model: str, reached: answers.TaskResult, reference: answers.TaskResult | None) -> None:
    table = Table(
        title=f"{reached.task}: {reached.train_items:,} training items, {reached.test_items:,} held out",
        columns=[Column(), Column(head=f"{reached.metric} (95 %)", right=True)],
    )
    for name, result in (
        (f"{model} ({reached.judged}, {reached.method})", reached),
        ("" if reference is None else reference.method, reference),
    ):
        if result is not None:
            value, low, high = (_show(result, each) for each in (result.value, result.low, result.high))
            table.add(name, f"{value} ({low.removesuffix(' %')} to {high.removesuffix(' %')})")
    print_table(table)
    if reached.confusion:
        for line in _confusion(reached).splitlines():
            put(line)


def _show(result: answers.TaskResult, value: float) -> str:
    return units.show(value, "share") if result.metric == "accuracy" else f"{value:.3f}"


def _confusion(result: answers.TaskResult) -> str:
    """The confusion matrix, with numbered classes: rows are true classes, columns predicted ones; zeros are blank."""
    count = len(result.classes)
    width = 1 + max(len(str(count)), max(len(str(cell)) for row in result.confusion for cell in row))
    lines = ["true class (down), predicted (across):", " " * width + _cells(range(1, count + 1), width)]
    for number, row in enumerate(result.confusion, 1):
        lines.append(f"{number:>{width}}" + _cells(row, width))
    lines.append("")
    for number, (name, row) in enumerate(zip(result.classes, result.confusion, strict=True), 1):
        right = f"{row[number - 1]} of {sum(row)} right" if sum(row) else "no held-out item"
        lines.append(f"{number:>{width}}  {name}: {right}")
    return "\n".join(lines)


def _cells(counts: Iterable[int], width: int) -> str:
    return "".join(f"{count or '':>{width}}" for count in counts).rstrip()
