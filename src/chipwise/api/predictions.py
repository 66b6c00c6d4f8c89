"""Estimates of a model's cost: on one device, on several devices, or for each row of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from chipwise.core.arguments import public
from chipwise.core.results import Result, ResultTable, data_frame
from chipwise.deploy.graphs.modules import Inputs, Module
from chipwise.design.models import candidates as ranking
from chipwise.design.models.graph_files import (
    GraphQuestion,
    GraphRows,
    GraphTable,
    asked_of_each,
    compare_graphs,
    estimate_graph,
    estimate_graph_on,
)
from chipwise.design.models.this_machine import estimate_here, estimate_on, is_here, kind_of, profile_here
from chipwise.errors import ChipwiseError, DoesNotFit, SpecError, Unsupported, counted
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.facts import PriceRate
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published import alike
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.cost.ownership import from_texts
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.explain.comparison import Cell, requests_of
from chipwise.predict.explain.comparison import compare as compare_requests
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.formats import wide_format
from chipwise.predict.served.heat import ambient_of, sustained
from chipwise.predict.served.offload import divided
from chipwise.predict.served.prompt_spread import check_prompts, over_prompts
from chipwise.predict.served.request import IMAGE_SIZE, Request, listening, resolved
from chipwise.predict.served.table import estimate_file
from chipwise.predict.served.training_step import TrainingEstimate, training_step

if TYPE_CHECKING:
    import pandas

    from chipwise.predict.explain.comparison import Cell, Comparison


@dataclass(frozen=True, repr=False)
class DeviceAnswer(Result):
    """A model on one device: its estimate, or the reason why there is none."""

    device: str
    estimate: CostEstimate | None
    problem: str = ""

    def headline(self) -> str:
        """The device with its times, or with the reason why there is no estimate."""
        return f"{self.device}: no estimate" if self.estimate is None else self.estimate.headline()

    def rows(self) -> list[Mapping[str, object]]:
        """Returns one row with every metric that is known."""
        metrics = {} if self.estimate is None else {name: item.value for name, item in self.estimate.metrics.items()}
        return [{"device": self.device} | metrics | {"problem": self.problem}]

    def detailed(self) -> Mapping[str, object]:
        """Returns the row with more columns: runtime, both ends of each interval, and the bytes of each kind of memory.

        The kinds of memory are, for example, weights, cache and activations.
        """
        found: dict[str, object] = {"device": self.device}
        if self.estimate is not None:
            found |= {"runtime": self.estimate.runtime, "provenance": self.estimate.provenance}
            for name, item in self.estimate.metrics.items():
                found |= {name: item.value, f"{name}_low": item.low, f"{name}_high": item.high}
            found |= {f"memory_{name}_bytes": value for name, value in self.estimate.memory_bytes.items()}
        return found | {"problem": self.problem}

    def to_pandas(self) -> pandas.DataFrame:
        """The detailed row as a pandas data frame.

        Raises:
            ChipwiseError: pandas is not installed.
        """
        return data_frame([self.detailed()])


class EstimateTable(ResultTable[DeviceAnswer]):
    """Estimates of one model on several devices, fastest first. Devices without an estimate come last."""

    def rows(self) -> list[Mapping[str, object]]:
        """One row per device. All rows have the same columns; the value is None if a device lacks the metric."""
        found = super().rows()
        names = dict.fromkeys(name for row in found for name in row if name != "problem")
        return [{name: row.get(name) for name in (*names, "problem")} for row in found]

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas data frame with one row per device, including runtime, intervals and memory.

        Raises:
            ChipwiseError: pandas is not installed.
        """
        return data_frame([item.detailed() for item in self])


@overload
def estimate(
    model: Module, *, inputs: Inputs | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
    values: Mapping[str, float] | None = ..., device: str | Path | DeviceProfile = ..., devices: None = None,
    runtime: str | None = ..., weights: str | None = ...,
) -> RunEstimate: ...  # fmt: skip
@overload
def estimate(
    model: Module, *, inputs: Inputs | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
    values: Mapping[str, float] | None = ..., devices: Sequence[str] | str, runtime: str | None = ...,
    weights: str | None = ...,
) -> GraphTable: ...  # fmt: skip
@overload
def estimate(
    model: str | Path, *, shapes: Mapping[str, Sequence[int]], values: Mapping[str, float] | None = ...,
    device: str | Path | DeviceProfile = ..., devices: None = None, runtime: str | None = ...,
    weights: str | None = ...,
) -> RunEstimate: ...  # fmt: skip
@overload
def estimate(
    model: str | Path, *, shapes: Mapping[str, Sequence[int]], values: Mapping[str, float] | None = ...,
    devices: Sequence[str] | str, runtime: str | None = ..., weights: str | None = ...,
) -> GraphTable: ...  # fmt: skip
@overload
def estimate(
    model: str | Path | ArchSpec, *, device: str | Path | DeviceProfile = ..., devices: None = None,
    runtime: str | None = ..., prompt: int = ..., prompt_p99: int | None = ..., new: int = ..., batch: int = ...,
    weights: str | None = ..., kv: str | None = ..., tp: int = ..., pp: int = ..., ep: int = ..., dp: int = ...,
    images: int = ..., image_size: tuple[int, int] = ..., audio_s: float | None = ..., hypothetical: bool = ...,
    like: str | None = ...,
    gpu_layers: int | str | None = ..., n_cpu_moe: int | None = ..., host: str | None = ...,
    ambient: float | str | None = ...,
) -> CostEstimate: ...  # fmt: skip
@overload
def estimate(
    model: str | Path | ArchSpec, *, devices: Sequence[str] | str,
    runtime: str | None = ..., prompt: int = ..., prompt_p99: int | None = ..., new: int = ..., batch: int = ...,
    weights: str | None = ..., kv: str | None = ..., tp: int = ..., pp: int = ..., ep: int = ..., dp: int = ...,
    images: int = ..., image_size: tuple[int, int] = ..., audio_s: float | None = ..., hypothetical: bool = ...,
    like: str | None = ...,
    gpu_layers: int | str | None = ..., n_cpu_moe: int | None = ..., host: str | None = ...,
    ambient: float | str | None = ...,
) -> EstimateTable: ...  # fmt: skip
@public
def estimate(
    model: str | Path | ArchSpec | Module,
    *,
    device: str | Path | DeviceProfile = "h100-sxm",
    devices: Sequence[str] | str | None = None,
    runtime: str | None = None,
    prompt: int = 1024,
    prompt_p99: int | None = None,
    new: int = 128,
    batch: int = 1,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    images: int = 0,
    image_size: tuple[int, int] = IMAGE_SIZE,
    audio_s: float | None = None,
    hypothetical: bool = False,
    like: str | None = None,
    gpu_layers: int | str | None = None,
    n_cpu_moe: int | None = None,
    host: str | None = None,
    ambient: float | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: Inputs | None = None,
) -> CostEstimate | EstimateTable | RunEstimate | GraphTable:
    """Predicts the cost of serving ``model`` on a known device, kernel by kernel.

    >>> import chipwise
    >>> found = chipwise.estimate("gpt2", device="l4")
    >>> found.metrics["tpot_p50"].low < found.tpot_s < found.metrics["tpot_p50"].high
    True
    >>> chipwise.estimate("gpt2", devices=["l4", "h100-sxm"])[0].device
    'h100-sxm'

    Args:
        model: A bundled Hugging Face id, a ``config.json`` or its folder, a spec file, or an :class:`ArchSpec`. For
            an ONNX file, a PyTorch module or its name (``package.module:build``, ``file.py:build``; it is imported),
            the result is a :class:`RunEstimate` of one pass (type checkers infer this if ``shapes`` is given).
        device: A data sheet's name, alias or file; ``here`` is this machine, calibrated with one thread.
        devices: Several devices, or ``"all"``: the result is a table, fastest first.
        runtime: Inference runtime to model: vllm, sglang, trtllm, llama.cpp, …; see :func:`chipwise.runtimes`. Default:
            the device's own, such as vllm on servers and llama.cpp on a Mac or a GeForce.
        prompt: Prompt tokens per request.
        prompt_p99: P99 of prompt tokens, if prompts differ in length (lognormal, with ``prompt`` as their P50). The P99
            times of the result then cover prompts of all these lengths.
        new: New tokens per request.
        batch: Requests in flight, over all replicas.
        weights: Weight format; ``own`` means the checkpoint's format. Default: the chip's usual format, which is
            ``q4_k_m`` in llama.cpp on consumer chips and the checkpoint's own format elsewhere.
        kv: KV-cache dtype. Default: same as the activations.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree.
        dp: Data-parallel replicas of attention.
        images: Images per request, for models that read images. The tokens of the images are added to ``prompt``.
        image_size: Width and height of the images in pixels.
        audio_s: Seconds of sound per request, for an audio model, instead of a prompt. Default: 30 for Whisper, else
            10.
        hypothetical: Whether to estimate a model that does not fit in memory as if it did; ``does_not_fit`` in the
            result then says so.
        like: Family, such as ``llama``, whose format is assumed for a ``config.json`` with an unknown ``model_type``.
        gpu_layers: In llama.cpp, how many layers are on the graphics card (``auto``: all that fit), not on its host.
        n_cpu_moe: In llama.cpp, the number of layers whose experts stay on the host.
        host: The graphics card's host: its processor, or its memory bandwidth such as ``60 GB/s``. Default: a desktop.
        ambient: Ambient temperature, such as ``"45 C"``; adds ``ttft_sustained`` and ``tpot_sustained``, the times
            once long load has slowed the chip.
        shapes: For ONNX files: maps inputs to shapes, or names of open (dynamic) axes to sizes. An open first axis has
            size 1 by default. For modules: the shapes of the arguments.
        values: For ONNX files: constants that replace inputs. For modules: values of arguments that are numbers.
        inputs: For modules: examples of the arguments, as ``(x,)`` or by name, instead of ``shapes``.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument is wrong, or a parallel degree does not divide the model.
        Unsupported: The device's data sheet lists no arithmetic rate for a number format.
        DoesNotFit: There is too little memory; the message says by how much, and what would fit.
    """
    asks = GraphQuestion(model=model, inputs=inputs, shapes=shapes, values=values, runtime=runtime, weights=weights)
    if asks.applies():
        asks.refuse(kv=kv, images=images, audio_s=audio_s, gpu_layers=gpu_layers, n_cpu_moe=n_cpu_moe, host=host,
                    like=like, ambient=ambient, tp=tp, pp=pp, ep=ep, dp=dp, batch=batch)  # fmt: skip
        return estimate_graph(asks, device) if devices is None else estimate_graph_on(asks, devices)
    model, heard = listening(alike.named(model if isinstance(model, Path | ArchSpec) else str(model), like), audio_s)
    request = Request(
        model=model,
        deployment=Deployment(device=device, runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp),
        batch=batch,
        prompt_tokens=prompt,
        new_tokens=new,
        images=images,
        image_size=image_size,
        audio_s=heard,
    )
    offloads = gpu_layers is not None or n_cpu_moe is not None or host is not None
    if offloads and devices is not None:
        raise SpecError("only works for one device at a time", field="gpu_layers")
    if isinstance(gpu_layers, str) and gpu_layers != "auto":
        raise SpecError(f"must be a number of layers or 'auto', not {gpu_layers}", field="gpu_layers")

    def on_one(asked: Request) -> CostEstimate:
        if offloads:
            layers = None if isinstance(gpu_layers, str) else gpu_layers
            return divided(asked, gpu_layers=layers, cpu_experts=n_cpu_moe, host=host)
        return estimate_on(asked, hypothetical=hypothetical)

    longest = _longest(request, prompt_p99)
    if devices is None:
        found = on_one(request)
        if longest is not None:
            found = over_prompts(found, on_one(longest), p50=prompt, p99=longest.prompt_tokens)
        return found if ambient is None else _hot(found, request, ambient)
    if not devices:
        raise SpecError("name at least one device", field="devices")
    names = datasheet.names() if devices == "all" else [devices] if isinstance(devices, str) else devices
    answers = _answers(request, longest, names, ambient, hypothetical=hypothetical)
    answers.sort(key=lambda each: _seconds(each.estimate) if each.estimate else float("inf"))
    return EstimateTable(f"{_name(model)} on {counted(len(answers), 'device')}", answers)


@public
def owned(
    device: str | Path,
    *,
    electricity: str,
    buy: str | None = None,
    years: float = 4.0,
    use: float = 1.0,
    power: str | None = None,
) -> DeviceProfile:
    """Returns the data sheet of a device that you own, with your cost per hour instead of the rent.

    >>> import chipwise
    >>> mine = chipwise.owned("rtx-4090", buy="1800 USD", electricity="0.30 USD/kWh")
    >>> round(3600 * mine.price_usd_per_s, 4)  # 1800 / (4 * 8760) + 0.45 * 0.30
    0.1864
    >>> chipwise.estimate("Qwen/Qwen3-8B", device=mine).metrics["usd_per_1k_output_tokens"].value < 1e-3
    True

    Args:
        device: A data sheet's name, alias or file.
        electricity: The tariff, such as ``0.30 USD/kWh``. Another currency needs an exchange rate to dollars, such as
            ``0.28 EUR/kWh @ 1.16``.
        buy: The device's purchase price, such as ``1800 USD``, or ``list`` for the list price on the data sheet. If
            ``None``, the device is already paid for, and an hour costs only electricity.
        years: Years over which the device is paid off.
        use: Share of all hours in which the device works. Power drawn while the device is idle is not counted.
        power: Power draw under load, such as ``450 W``. Default: the board power of the data sheet.

    Raises:
        UnknownName: There is no such data sheet.
        SpecError: An argument is wrong, or the power or the list price is unknown.
    """
    sheet = datasheet.load(str(device))
    if buy == "list":
        if sheet.purchase is None:
            raise SpecError(f"{sheet.name} lists no purchase price; state it, such as 1800 USD", field="buy")
        buy = f"{sheet.purchase.number:.12g} USD"
    board_w = None if sheet.board_power is None else sheet.board_power.number
    found = from_texts(electricity=electricity, buy=buy, years=years, use=use, power=power, board_power_w=board_w)
    return replace(sheet, price=PriceRate(value=f"{found.usd_per_h!r} USD/h", source=found.describe()))


def _longest(request: Request, prompt_p99: int | None) -> Request | None:
    """Returns the request with a prompt of ``prompt_p99`` tokens; None if all prompts have the same length."""
    if prompt_p99 is None:
        return None
    check_prompts(request.prompt_tokens, prompt_p99, "prompt_p99")
    arch = request.model if isinstance(request.model, ArchSpec) else resolve(request.model)
    if arch.own_tokens or request.audio_s:
        raise SpecError(f"{arch.name} reads no prompt; leave prompt_p99 out", field="prompt_p99")
    return request.but(prompt_tokens=prompt_p99)


def _over_prompts(found: DeviceAnswer, longest: DeviceAnswer, request: Request, asked: Request) -> DeviceAnswer:
    if found.estimate is None or longest.estimate is None:
        return longest if longest.estimate is None else found
    spread = over_prompts(found.estimate, longest.estimate, p50=request.prompt_tokens, p99=asked.prompt_tokens)
    return replace(found, estimate=spread)


def _answers(
    request: Request, longest: Request | None, names: Sequence[str], ambient: float | str | None, *, hypothetical: bool
) -> list[DeviceAnswer]:
    """Returns one result per device.

    If ``longest`` (the request with a prompt of P99 length) is given, the P99s of times are those over prompts of
    varying length. If ``ambient`` is given, times under long load are added.
    """
    answers = on_devices(request, names, hypothetical=hypothetical)
    if longest is not None:
        there = on_devices(longest, names, hypothetical=hypothetical)
        answers = [_over_prompts(*each, request, longest) for each in zip(answers, there, strict=True)]
    for i, each in enumerate(answers):
        if ambient is not None and each.estimate is not None:
            try:
                hot = _hot(each.estimate, request.but(device=each.device), ambient)
                answers[i] = replace(each, estimate=hot)
            except Unsupported as error:
                answers[i] = DeviceAnswer(each.device, None, str(error))
    return answers


def _hot(found: CostEstimate, request: Request, ambient: float | str) -> CostEstimate:
    """Adds to ``found`` the times under long load, when heat has slowed the chip.

    Raises:
        SpecError: ``found`` is for this machine, whose slowdown can only be measured, or ``ambient`` is not a
            temperature.
    """
    ambient_c = ambient_of(ambient)
    if isinstance(request.device, str) and is_here(request.device):
        raise SpecError(
            "only applies to data sheets; measure this machine with: chipwise measure MODEL --sustained 10m",
            field="ambient",
        )
    return sustained(found, resolved(request).device, ambient_c)


def on_devices(request: Request, names: Sequence[str], *, hypothetical: bool) -> list[DeviceAnswer]:
    """Returns the results of one request on several devices. Devices with data sheets are estimated in one call."""
    elsewhere = [name for name in names if not is_here(name)]
    priced = estimates([request.but(device=name) for name in elsewhere], hypothetical=hypothetical)
    found = dict(zip(elsewhere, priced, strict=True))
    answers = []
    for name in names:
        try:
            answers.append(_answer(name, found[name] if name in found else estimate_here(request.but(device=name))))
        except (DoesNotFit, Unsupported) as error:
            answers.append(DeviceAnswer(name, None, str(error)))
    return answers


def _answer(name: str, found: CostEstimate | ChipwiseError) -> DeviceAnswer:
    """Returns the result on one device; if ``found`` is an error, raises it."""
    if isinstance(found, ChipwiseError):
        raise found
    return DeviceAnswer(name, found)


def _name(model: str | Path | ArchSpec) -> str:
    return (model.name or "model") if isinstance(model, ArchSpec) else str(model)


def _seconds(found: CostEstimate) -> float:
    """Returns the time by which devices are sorted: TPOT, or the time of a pass if the model generates no tokens."""
    return found.tpot_s if "tpot_p50" in found.metrics else found.ttft_s


@public
def estimate_training(
    model: str | Path | ArchSpec,
    *,
    device: str | Path | DeviceProfile = "h100-sxm",
    runtime: str = "torch-compile",
    prompt: int = 1024,
    batch: int = 1,
    microbatches: int = 1,
    checkpoint: bool = False,
    weights: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    zero: int = 0,
) -> TrainingEstimate:
    """Predicts one optimiser step: seconds, tokens per second, MFU, memory of the fullest device.

    Args:
        model: See :func:`estimate`.
        device: A data sheet's name, alias or file.
        runtime: ``torch-compile`` or ``torch-eager``.
        prompt: Tokens per sequence.
        batch: Sequences per step, over all replicas.
        microbatches: Number of microbatches into which each replica divides its share of the batch.
        checkpoint: Whether activations are recomputed instead of kept in memory.
        weights: The number format of matrix products. Default: the first of bf16, fp16 and fp32 that the device
            supports.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree.
        dp: Data-parallel replicas, which share the batch and sum gradients.
        zero: ZeRO stage. Stage 1 shards optimiser states over replicas, stage 2 also gradients, and stage 3 also
            weights (FSDP); 0 shards nothing.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument is wrong, or a parallel degree does not divide the model or the batch.
        Unsupported: The device's data sheet lists no arithmetic rate for a number format.
        DoesNotFit: There is too little memory; the message says by how much, and what would help.
    """
    sheet = device if isinstance(device, DeviceProfile) else datasheet.load(str(device))
    weights = wide_format(sheet) if weights is None else weights  # the format of the checkpoint does not matter here
    request = Request(
        model=model, deployment=Deployment(device=sheet, runtime=runtime, weights=weights, tp=tp, pp=pp, ep=ep, dp=dp)
    )
    found = resolved(request)
    tokens = found.setting.arch.request_tokens or prompt
    return training_step(
        found.setting, found.device, batch=batch, tokens=tokens, microbatches=microbatches, checkpoint=checkpoint,
        zero=zero,
    )  # fmt: skip


@overload
def compare(
    models: Sequence[Module], *, inputs: Inputs | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
    values: Mapping[str, float] | None = ..., devices: Sequence[str] | None = ..., runtime: str | None = ...,
    weights: str | None = ...,
) -> GraphTable: ...  # fmt: skip
@overload
def compare(
    models: Sequence[str | Path | Module], *, shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, float] | None = ..., inputs: Inputs | None = ..., devices: Sequence[str] | None = ...,
    runtime: str | None = ..., weights: str | None = ...,
) -> GraphTable: ...  # fmt: skip
@overload
def compare(
    models: Sequence[str], *, devices: Sequence[str] | None = ..., runtime: str | None = ..., prompt: int = ...,
    new: int = ..., batch: int = ..., weights: str | None = ..., kv: str | None = ..., tp: int = ..., pp: int = ...,
    ep: int = ..., dp: int = ..., images: int = ..., image_size: tuple[int, int] = ..., audio_s: float | None = ...,
    like: str | None = ...,
) -> Comparison: ...  # fmt: skip
@public
def compare(
    models: Sequence[str | Path | Module],
    *,
    devices: Sequence[str] | None = None,
    runtime: str | None = None,
    prompt: int = 1024,
    new: int = 128,
    batch: int = 1,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    images: int = 0,
    image_size: tuple[int, int] = IMAGE_SIZE,
    audio_s: float | None = None,
    like: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    inputs: Inputs | None = None,
) -> Comparison | GraphTable:
    """Compares models side by side on ``devices`` (default: all bundled ones).

    Args:
        models: Two or more models, each as in :func:`estimate`. ONNX files and PyTorch modules can only be compared
            with each other; the result is then a table of passes, with the fastest first on each device.
        devices: Data sheets' names or files; ``here`` is this machine, calibrated with one thread.
        runtime: Inference runtime to model. Default: each device's own.
        prompt: Prompt tokens per request.
        new: New tokens per request.
        batch: Requests in flight.
        weights: Weight format. Default: each device's usual format, as in :func:`estimate`.
        kv: KV-cache dtype.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree.
        dp: Data-parallel replicas of attention.
        images: Images per request; every model must read images.
        image_size: Width and height of the images in pixels.
        audio_s: Seconds of sound per request; every model must take audio. Default: each model's usual length.
        like: Family for models given as files, as in :func:`estimate`.
        shapes: ONNX files and modules: see :func:`estimate`; the same shapes are used for all of them.
        values: ONNX files and modules: see :func:`estimate`.
        inputs: Modules: see :func:`estimate`; ``shapes`` then only applies to files.

    Raises:
        UnknownName: A model or device is unknown.
        InputError: Only some of the models are ONNX files or modules, or an argument does not apply.
        SpecError: No model or no device is named, or a parallel degree does not divide a model.
    """
    if not models:
        raise SpecError("name at least one model", field="models")
    if devices is not None and not devices:
        raise SpecError("name at least one device", field="devices")
    asks = GraphQuestion(model="", shapes=shapes, values=values, runtime=runtime, weights=weights)
    if graphs := asked_of_each(models, asks, inputs):
        graphs[0].refuse(kv=kv, images=images, audio_s=audio_s, like=like, batch=batch, tp=tp, pp=pp, ep=ep, dp=dp)
        return compare_graphs(graphs, devices)
    texts = [alike.named(text, like) if os.path.exists(text := str(model)) else text for model in models]
    for text in texts:
        resolve(text)
    names = devices or datasheet.names()
    here = []
    if any(map(is_here, names)):
        profile_here(runtime or "onnxruntime", kind=kind_of(*texts))  # raises an error if this machine has no profile
        served = Deployment(device="here", runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp)
        asked = Request(
            model="", deployment=served, batch=batch, prompt_tokens=prompt, new_tokens=new, images=images
        )  # fmt: skip
        here = [_cell_here(model, audio_s, asked) for model in dict.fromkeys(texts)]
    requests = requests_of(
        texts, [name for name in names if not is_here(name)], audio_s=audio_s, runtime=runtime, weights=weights, kv=kv,
        tp=tp, pp=pp, ep=ep, dp=dp, prompt_tokens=prompt, new_tokens=new, batch=batch, images=images,
        image_size=image_size,
    )  # fmt: skip
    return compare_requests(*requests, others=here)


def _cell_here(model: str, audio_s: float | None, asked: Request) -> Cell:
    try:
        heard, seconds = listening(model, audio_s)
        found = estimate_here(replace(asked, model=heard, audio_s=seconds))
    except ChipwiseError as error:
        return Cell(model=model, device="here", estimate=None, problem=str(error))
    return Cell(model=model, device="here", estimate=found, generates="tpot_p50" in found.metrics)


candidates = public(ranking.candidates)


@public
def estimate_table(
    path: str | Path, out: str | Path, *, on_progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Estimates each row of a CSV file; returns the number of rows and the number of rows with an error.

    Raises:
        SpecError: The file is not a table, or lacks the column ``model`` or ``device``.
        StorageError: ``out`` cannot be written.
    """
    return estimate_file(Path(path), Path(out), progress=on_progress, other=GraphRows())
