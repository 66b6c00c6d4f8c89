"""Public functions that measure a model on this or another machine, or export it. They check their arguments."""

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
    """Chooses number formats for a model's operators or matrices by measured time and measured loss.

    An ONNX file is made as fast as possible within a limit on the loss. A decoder in a Hugging Face folder or a GGUF
    file becomes a GGUF file with a mix of llama.cpp's formats. Among the mixes within limits on time and memory, the
    one that changes the decoder's next-token distributions least is chosen. If it is not clearly better than the best
    of llama.cpp's own mixes (Q4_K_M, …), llama.cpp's mix is written instead. The run can be stopped and resumed,
    because intermediate results are in a folder next to the output. With a ``method``, a Hugging Face folder, a winner
    of a search or a GGUF file is written as ONNX in one format, by :func:`chipwise.export`.

    Args:
        model: An ``.onnx`` file, a PyTorch module, the name of such a module (``package.module:build`` or
            ``file.py:build``, which is imported), a Hugging Face folder or a ``.gguf`` file.
        data: For ONNX: a ``.npz`` file with samples of each input along a first axis, a folder of ``.npz`` files with
            one sample each, or arrays by name of the input; other arrays, such as labels, are for the metric. For GGUF:
            text files, or folders of ``.txt`` files; each file is a domain, whose last third is held out.
        loss: For ONNX: limit on the loss, such as ``<= 1 %`` of the metric's score. Without a metric, the loss is the
            largest loss of an output: for probabilities the divergence in nats, for whole numbers the share that
            differ, for all other outputs the relative error.
        metric: For ONNX: a function in a Python file, such as ``metric.py:score``. It is called as ``score(outputs,
            data)`` where both are dicts of lists of arrays, by name; a higher score is better.
        inputs: For a module: examples of its arguments, as ``(x,)`` or by name. The module is traced with their shapes.
        shapes: For ONNX: sizes of open (dynamic) axes of inputs; in the written file, these axes have fixed sizes. For
            a module: shapes of its arguments, instead of ``inputs``.
        values: For ONNX: constants that replace inputs. The written file ignores what is passed for these inputs.
        tpot: For GGUF: limit on the time of a decode step, such as ``<= 8 ms``.
        memory: For GGUF: limit on the bytes of weights, such as ``<= 400 MB``. If no limit is given, the size and the
            time of Q4_K_M are the limits.
        context: For GGUF: number of tokens in the KV cache, which then counts towards ``memory`` and the time of a
            decode step. The format of the cache (f16, q8_0, q4_0) is chosen together with that of the weights. If
            ``None``, the cache is f16, and its memory is not counted.
        weights: For GGUF: one format for all matrices, such as ``q4_k``, instead of a mix. With a method: ``int8`` or
            ``int4`` (default).
        method: How ONNX weights are rounded: ``nearest``, ``searched``, ``gptq``, ``learned``, or ``auto`` for the
            method with the lowest loss on calibration data. With a method, ``data`` may also be a run file.
        cpu_seconds: CPU seconds for ``learned``. Default: 60. If given, ``auto`` also tries ``learned``.
        device: For GGUF: a chip other than this machine; times are then predicted from its data sheet.
        dry_run: For GGUF: choose formats and predict their cost, but neither write nor measure a file.
        out: The file to write; with a method, the folder. Default: ``NAME.quantised.onnx``, ``NAME.mix.gguf`` or
            ``NAME-onnx`` in the current folder.
        threads: For ONNX: threads of the runtime. With one, times are CPU times; other programs hardly disturb them.
        minutes: For ONNX: maximum minutes for trying changes of single operators after the formats are chosen.
        seed: Random seed. For ONNX: for splitting the data. For GGUF: for the random samples that estimate losses.
        resume: Continue a stopped run.
        on_progress: Called with the stage, the number of finished steps and the total number of steps.

    Raises:
        InputError: The model, the data or a limit is wrong, or no mix meets the limits.
        StudyError: The folder of intermediate results holds a different run, or it holds this run and ``resume`` is not
            given.
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
        raise SpecError("must be text files, or folders of text files, for this model", field="data")
    if rounds:
        whom = "a choice of formats; with a method (--method, --cpu-seconds) none is made"
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
