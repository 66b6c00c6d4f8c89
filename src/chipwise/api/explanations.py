"""Explains what takes a model's time, and which changes would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from chipwise.core.arguments import public
from chipwise.deploy.graphs.modules import Inputs, Module
from chipwise.design.models.graph_files import GraphQuestion, explain_graph
from chipwise.design.models.this_machine import is_here, kind_of, profile_here, weights_here
from chipwise.design.phases.one_model import layer_losses_on_task, run_of
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published import alike
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import resolve
from chipwise.predict.explain.cases import calibrated_case, data_sheet_case, priced_here, read_sensitivity
from chipwise.predict.explain.explanation import Explanation, explain_case
from chipwise.predict.graphs.explanation import GraphExplanation
from chipwise.predict.served.request import IMAGE_SIZE, listening, taken_for
from chipwise.training.loop.sensitivity import folder_losses


@public
def sensitivity(
    model: str | Path,
    text: str | Path | None = None,
    *,
    data: str | Path | None = None,
    weights: str = "int8",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Measures how much the loss rises if one layer at a time is stored in a narrow format, as input for ``explain``.

    For text, the loss is in bits per byte. For another task, it is the task's own loss on validation data, such as the
    error rate.

    Args:
        model: A folder with weights (and, for text, a tokenizer), such as the winner of a search.
        text: A text file on which the model was not trained, with one entry per line.
        data: A run file of a task other than text; its data are used. Default for a winner: the data of its run.
        weights: ``int8`` or ``int4``.
        on_progress: Called with the number of finished layers and the total number.

    Raises:
        InputError: Weights, tokenizer or text are missing, or ``data`` is a run file of a text task.
        Unsupported: ``weights`` is neither ``int8`` nor ``int4``.
    """
    if text is None:
        if (run := run_of(model, data)) is None:
            raise InputError("give a text file (--text FILE), or a run file of another task, as in --data vision.yaml")
        return layer_losses_on_task(model, run, weights, on_progress=on_progress)
    if data is not None:
        raise InputError("give only one of --text and --data")

    return folder_losses(model, text, weights, on_progress=on_progress)


@overload
def explain(
    model: Module, *, inputs: Inputs | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
    values: Mapping[str, float] | None = ..., device: str = ..., runtime: str | None = ..., weights: str | None = ...,
    threads: int = ...,
) -> GraphExplanation: ...  # fmt: skip
@overload
def explain(
    model: str | Path, *, shapes: Mapping[str, Sequence[int]], values: Mapping[str, float] | None = ...,
    device: str = ..., runtime: str | None = ..., weights: str | None = ..., threads: int = ...,
) -> GraphExplanation: ...  # fmt: skip
@overload
def explain(
    model: str | Path | ArchSpec, *, device: str = ..., runtime: str | None = ..., weights: str | None = ...,
    kv: str | None = ..., tp: int = ..., pp: int = ..., ep: int = ..., dp: int = ..., batch: int = ...,
    prompt: int = ..., new: int = ..., shared: int = ..., images: int = ..., image_size: tuple[int, int] = ...,
    audio_s: float | None = ..., train: bool = ..., checkpoint: bool = ...,
    sensitivity: str | Path | Sequence[float] | None = ..., threads: int = ..., every: bool = ...,
    other_chips: bool = ..., like: str | None = ...,
) -> Explanation: ...  # fmt: skip
@public
def explain(
    model: str | Path | ArchSpec | Module,
    *,
    device: str = "h100-sxm",
    runtime: str | None = None,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    batch: int = 1,
    prompt: int = 1024,
    new: int = 128,
    shared: int = 0,
    images: int = 0,
    image_size: tuple[int, int] = IMAGE_SIZE,
    audio_s: float | None = None,
    train: bool = False,
    checkpoint: bool = False,
    sensitivity: str | Path | Sequence[float] | None = None,
    threads: int = 1,
    every: bool = False,
    other_chips: bool = False,
    like: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: Inputs | None = None,
) -> Explanation | GraphExplanation:
    """Explains what takes the time of ``model`` on a chip, and how much each possible change would gain.

    Args:
        model: See :func:`estimate`. An ONNX file or a PyTorch module gives a :class:`GraphExplanation`; for
            a file, type checkers infer this only if ``shapes`` is given.
        device: A data sheet, or ``here`` for this machine. On this machine, an ONNX file or a module is measured; any
            other model is predicted, and this needs a calibration of the machine.
        runtime: See :func:`estimate`. Default: ``onnxruntime`` on this machine, ``torch-compile`` for training.
        weights: Number format of the matrices, as in :func:`estimate`.
        kv: KV-cache dtype. Default: same as the activations.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree.
        dp: Data-parallel replicas of attention.
        batch: Requests in flight, or sequences of a training step.
        prompt: Prompt tokens of a request.
        new: New tokens of a request.
        shared: Tokens at the start of the prompt that all prompts share.
        images: Images per request, for models that read images.
        image_size: Width and height of the images in pixels.
        audio_s: Seconds of sound per request, for an audio model. Default: 30 for Whisper, else 10.
        train: Explain an optimiser step over ``batch`` sequences of ``prompt`` tokens, instead of serving.
        checkpoint: Whether activations are recomputed in the backward pass; only with ``train``.
        sensitivity: For each layer, the rise in loss if this layer alone is stored in a narrow format: a list, or a
            JSON file with a list, as from :func:`sensitivity`.
        threads: Number of threads of the runtime; only for this machine.
        every: Whether to include advice whose gain is uncertain.
        other_chips: Whether to suggest other devices.
        like: See :func:`estimate`.
        shapes: See :func:`estimate`.
        values: See :func:`estimate`.
        inputs: See :func:`estimate`.

    Raises:
        InputError: This machine was not calibrated in this runtime, or arguments contradict each other.
        UnknownName: A name is unknown; the error lists similar names.
        SpecError: A parallel degree does not divide the model.
        Unsupported: The chip's data sheet lists no arithmetic rate for a number format, or this machine's profile has
            no fitted rates for a block.
    """
    asks = GraphQuestion(
        model=model, inputs=inputs, shapes=shapes, values=values, runtime=runtime, weights=weights, threads=threads
    )
    if asks.applies():
        asks.refuse(kv=kv, train=train, sensitivity=sensitivity, images=images, audio_s=audio_s, tp=tp, pp=pp, ep=ep,
                    dp=dp, batch=batch)  # fmt: skip
        return explain_graph(asks, device)
    if threads != 1 and not is_here(device):
        raise InputError(
            "threads: only applies to this machine; for a data sheet, name the cores, such as core-i7-13700k:4-cores"
        )
    model = alike.named(model, like)
    model = model if isinstance(model, ArchSpec) else str(model)
    if checkpoint and not train:
        raise InputError("checkpoint: activations are recomputed only in training; set `train` as well")
    asked: dict[str, Any] = {"tp": tp, "pp": pp, "ep": ep, "dp": dp, "batch": batch, "shared_tokens": shared}
    asked |= {"prompt_tokens": prompt, "new_tokens": new, "kv": kv}
    if images and train:
        raise InputError("images: a training step on images cannot be predicted; leave images out")
    if audio_s is not None and train:
        raise InputError(
            "audio_s: a training step can only be predicted for the model's usual length of sound; leave audio_s out"
        )
    weights = weights or (default_weights(model) if isinstance(model, str) and audio_s is not None else None)
    heard, sound_s = listening(model, audio_s)
    named = heard if isinstance(heard, ArchSpec) else str(heard)
    asked |= {"images": images, "image_size": image_size, "audio_s": sound_s, "weights": weights}
    if sensitivity is not None:
        asked["sensitivity"] = read_sensitivity(sensitivity)
    if train:
        if is_here(device):
            raise InputError("training on this machine is measured, not predicted; run: chipwise train")
        asked |= {"task": "train", "checkpoint": checkpoint}
    try:
        if is_here(device):
            priced_here(heard if isinstance(heard, ArchSpec) else resolve(heard), images=images, audio_s=sound_s)
            asked["weights"] = weights_here(model, weights)
            profile = profile_here(runtime or "onnxruntime", threads, kind=kind_of(model))
            case = calibrated_case(named, profile, **asked)
        else:
            asked["runtime"] = runtime or ("torch-compile" if train else None)  # None: the device's default
            case = data_sheet_case(named, device, **asked)
    except SpecError as error:
        if error.field != "sensitivity" or not isinstance(sensitivity, str | Path):
            raise
        raise error.inside(file=str(sensitivity)) from None
    found = explain_case(case, every=every, other_chips=other_chips)
    said = taken_for(model, None if is_here(device) else device)
    return replace(found, notes=tuple(dict.fromkeys((*said, *found.notes))))
