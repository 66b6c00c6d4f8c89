"""The public function that makes a model faster by number formats, with arguments checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chipwise.core.arguments import public
from chipwise.core.arrays import AnyArray
from chipwise.deploy.graphs.modules import Module, on_disk
from chipwise.design.quantize import onnx_file
from chipwise.errors import InputError


@public
def quantize(
    model: str | Path | Module,
    *,
    data: str | Path | Mapping[str, AnyArray],
    loss: str | float = "<= 1 %",
    metric: str | None = None,
    inputs: Sequence[object] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    out: str | Path | None = None,
    threads: int = 1,
    minutes: float = 10.0,
    seed: int = 0,
    resume: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> onnx_file.QuantisedFile:
    """The fastest form of an ONNX file on this machine within a loss: number formats chosen by measured time and loss.

    Half of the samples choose, the other half only score the result. If nothing beats the original, nothing is written.
    Can be stopped and resumed; what is known so far is in a folder next to the output.

    Args:
        model: An ``.onnx`` file, or a PyTorch module.
        data: A ``.npz`` file that holds samples of each input along a first axis, or a folder of such files, one for
            each sample, or arrays by the names of inputs. Further arrays, such as labels, are for the metric.
        loss: Largest loss, such as ``<= 1 %``: of the metric's score; without a metric, the relative error of the worst
            output, the divergence in nats of probabilities, or the share of whole numbers that differ.
        metric: A function of a Python file, such as ``metric.py:score``, called as ``score(outputs, data)`` with a list
            of arrays for each output and for each array of the data; more is better.
        inputs: Examples of a module's inputs, by whose shapes it is traced.
        shapes: Sizes by which open axes of inputs are fixed in the written file.
        values: Values to which inputs are fixed in the written file, which then ignores them.
        out: The file to write. Default: ``NAME.quantised.onnx`` in the current folder.
        threads: Threads of the runtime. With one, CPU time is measured, which other programs disturb little.
        minutes: Most minutes for changes of single operators after the exact choice.
        seed: Random seed of the split.
        resume: Go on with a stopped run.
        on_progress: Called with the stage, the finished steps and the total steps.

    Raises:
        InputError: The file, the data, the loss or the metric is wrong.
        StudyError: The folder of the state holds another run, or this one and ``resume`` is not given.
        MeasurementError: The runtime cannot run the original, or its outputs are not finite.
        Unsupported: The graph has inputs that are no tensors, or more than 2 GB.
    """
    with on_disk(model, inputs, data) as (path, file):
        if file is None:
            raise InputError("data: give a .npz file, a folder of such files, or arrays")
        return onnx_file.quantise_file(
            path,
            data=file,
            loss=loss,
            metric=metric,
            shapes=shapes,
            values=values,
            out=out,
            threads=threads,
            minutes=minutes,
            seed=seed,
            resume=resume,
            on_progress=on_progress,
        )
