"""Public functions for measuring a model here or elsewhere and for exporting it, with arguments checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.arguments import public
from chipwise.core.arrays import AnyArray
from chipwise.core.files import resumable
from chipwise.deploy.graphs.modules import Inputs, Module, is_module
from chipwise.deploy.runtimes.ggml import TYPES
from chipwise.deploy.teach import machine
from chipwise.design import quantize as files
from chipwise.design.models import compiling, exports, kits, measuring, pages, phones
from chipwise.design.quantize import onnx_file
from chipwise.errors import SpecError
from chipwise.model.walk.calibration import AUTO

if TYPE_CHECKING:
    from chipwise.design.quantize.gguf_run import QuantisedGguf
    from chipwise.design.quantize.onnx_file import QuantisedFile

export = public(exports.export)
import_measurements = public(kits.import_measurements)
kit = public(kits.kit)
measure = public(measuring.measure)
measure_pages = public(pages.measure_pages)
measure_compiled = public(compiling.measure_compiled)
measure_phone = public(phones.measure_phone)
teach = public(machine.teach)


@resumable()
@public
def quantize(
    model: str | Path | Module,
    *,
    data: str | Path | Sequence[str | Path] | Mapping[str, AnyArray],
    loss: str | float = "<= 1 %",
    metric: str | None = None,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    tpot: str | None = None,
    memory: str | None = None,
    context: int | None = None,
    weights: str | None = None,
    method: str | None = None,
    cpu_seconds: float | None = None,
    device: str | None = None,
    dry_run: bool = False,
    out: str | Path | None = None,
    threads: int = 1,
    minutes: float = 10.0,
    seed: int = 0,
    resume: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> QuantisedFile | QuantisedGguf | exports.Exported:
    """The best number formats of a model on this machine, each chosen by measured time and measured loss.

    An ONNX file becomes as fast as it can within a loss. A decoder in a Hugging Face folder or a GGUF file becomes a
    GGUF file: the mix of llama.cpp's formats that changes its next-token distributions least within limits of time and
    memory, or a stock mix where none is better. Can be stopped and resumed; what is known so far is in a folder next to
    the output. With a ``method``, a Hugging Face folder, a winner or a GGUF file is written as ONNX in one format, by
    :func:`chipwise.export`.

    Args:
        model: An ``.onnx`` file, a PyTorch module or the name of one (``package.module:build`` or ``file.py:build``,
            which is imported), a Hugging Face folder or a ``.gguf`` file.
        data: ONNX: a ``.npz`` file that holds samples of each input along a first axis, or a folder of such files, one
            for each sample, or arrays by the names of inputs; further arrays, such as labels, are for the metric. GGUF:
            text files, or folders of ``.txt`` files; each file is a domain, whose last third is held out.
        loss: ONNX: the largest loss, such as ``<= 1 %``: of the metric's score; without a metric, the relative error of
            the worst output, the divergence in nats of probabilities, or the share of whole numbers that differ.
        metric: ONNX: a function of a Python file, such as ``metric.py:score``, called as ``score(outputs, data)`` with
            a list of arrays for each output and for each array of the data; more is better.
        inputs: Examples of a module's arguments, as ``(x,)`` or by name, by whose shapes it is traced.
        shapes: ONNX: sizes by which open axes of inputs are fixed in the written file. A module: shapes of its
            arguments, instead of ``inputs``.
        values: ONNX: values to which inputs are fixed in the written file, which then ignores them.
        tpot: GGUF: the longest decode step, such as ``<= 8 ms``.
        memory: GGUF: the most bytes of weights, such as ``<= 400 MB``. Without any limit: size and time of Q4_K_M.
        context: GGUF: tokens whose keys and values count as memory and are read by a step; their format (f16, q8_0,
            q4_0) is then chosen together with the weights'. None: f16, which does not count.
        weights: GGUF: one format for all matrices, such as ``q4_k``, instead of a mix. With a method: ``int8`` or
            ``int4`` (default).
        method: How ONNX weights are rounded: ``nearest``, ``searched``, ``gptq``, ``learned``, or ``auto``: the one of
            least loss on calibration data, which may also be a run file.
        cpu_seconds: CPU seconds of ``learned``, 60 unless given; where they are given, ``auto`` tries it too.
        device: GGUF: a chip that is not here, whose times are predicted from its data sheet.
        dry_run: GGUF: choose and promise, but write and measure no file.
        out: The file to write; with a method, the folder. Default: ``NAME.quantised.onnx``, ``NAME.mix.gguf`` or
            ``NAME-onnx`` in the current folder.
        threads: ONNX: threads of the runtime. With one, CPU time is measured, which other programs disturb little.
        minutes: ONNX: most minutes for changes of single operators after the exact choice.
        seed: Random seed of the split, or of the tokens by which losses are measured.
        resume: Go on with a stopped run.
        on_progress: Called with the stage, the finished steps and the total steps.

    Raises:
        InputError: The model, the data or a limit is wrong, or no mix keeps the limits.
        StudyError: The folder of the state holds another run, or this one and ``resume`` is not given.
        MeasurementError: The runtime cannot run the model, or its outputs are not finite.
        Unsupported: A graph, an architecture or a format is not supported.
        MissingExtra: A needed package is not installed.
    """
    target = None if out is None else Path(out)
    rounds = method is not None or cpu_seconds is not None
    if is_module(model) or not isinstance(model, str | Path) or not _holds_decoder(model):
        _refuse(
            "a GGUF file or a Hugging Face folder",
            tpot=tpot,
            memory=memory,
            context=context,
            weights=weights,
            device=device,
            method=method,
            cpu_seconds=cpu_seconds,
        )
        if dry_run or not isinstance(data, str | Path | Mapping):
            raise SpecError(
                "only applies to a GGUF file or a Hugging Face folder", field="dry_run" if dry_run else "data"
            )
        return onnx_file.quantize(
            model, data=data, loss=loss, metric=metric, inputs=inputs, shapes=shapes, values=values, out=target,
            threads=threads, minutes=minutes, seed=seed, resume=resume, on_progress=on_progress,
        )  # fmt: skip
    other = None if loss == "<= 1 %" else loss
    _refuse("an ONNX file", loss=other, metric=metric, inputs=inputs, shapes=shapes or None, values=values or None)
    _refuse("an ONNX file", threads=None if threads == 1 else threads)
    if isinstance(data, Mapping):
        raise SpecError("must be text files or folders of them for this model", field="data")
    if rounds:
        whom = "a choice of formats, which a method (--method, --cpu-seconds) leaves out"
        _refuse(whom, tpot=tpot, memory=memory, context=context, device=device, dry_run=dry_run or None)
        if (weights or "").upper() in TYPES:
            raise SpecError(
                f"{weights} is rounded by llama.cpp; leave the method (--method, --cpu-seconds) out, or write ONNX in "
                "int8 or int4",
                field="format",
            )
        return exports.export(
            model, to="onnx", weights=weights or "int4", out=target, method=method or AUTO, data=data,
            cpu_seconds=cpu_seconds, on_progress=on_progress,
        )  # fmt: skip
    files.require_packages()
    return files.quantize_gguf(
        Path(model), [data] if isinstance(data, str | Path) else data, tpot=tpot, memory=memory, context=context,
        weights=weights, device=device, dry_run=dry_run, out=target, seed=seed, resume=resume, on_progress=on_progress,
    )  # fmt: skip


def _holds_decoder(model: str | Path) -> bool:
    return Path(model).is_dir() or Path(model).suffix == ".gguf"


def _refuse(whom: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"only applies to {whom}", field=name)
