"""Tables of the devices, models and runtimes that chipwise knows by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from chipwise.core.arguments import public
from chipwise.core.dtypes import FORMATS, DType
from chipwise.core.results import Result, ResultTable
from chipwise.deploy.runtimes import NEEDS, missing, table_name
from chipwise.errors import DoesNotFit, Unsupported, counted
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import RUNTIMES as ESTIMATED
from chipwise.model.published import families
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.offload import divided
from chipwise.predict.served.request import Request, parameters_of
from chipwise.predict.whole_runs import diffusion
from chipwise.predict.whole_runs.picture_models import PICTURE_MODELS, UNet


@dataclass(frozen=True, repr=False)
class _Entry(Result):
    name: str

    def headline(self) -> str:
        """Returns the entry's name, which serves as its one-line summary."""
        return self.name

    def rows(self) -> list[Mapping[str, Any]]:
        """Returns one row, with a column for each field of the entry."""
        return [{each.name: getattr(self, each.name) for each in fields(self)}]


@dataclass(frozen=True, repr=False)
class DeviceEntry(_Entry):
    """One chip: memory capacity, bandwidth, and dense peaks in operations per second; unpublished values are None."""

    title: str
    vendor: str
    family: str
    kind: str
    year: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    fp32_flops_per_s: float | None
    bf16_flops_per_s: float | None
    fp8_flops_per_s: float | None
    int8_ops_per_s: float | None
    board_power_w: float | None
    price_usd_per_s: float | None


@dataclass(frozen=True, repr=False)
class ModelEntry(_Entry):
    """One bundled model: its Hugging Face id and sizes.

    A diffusion model is listed under a short name, such as ``flux.1`` for ``black-forest-labs/FLUX.1-dev``. Its layers
    and width are those of the transformer or UNet, which runs in each step (for a UNet: the layers with attention, and
    the largest width). ``parameters`` includes all parts of a diffusion model. If the sizes of the other parts are
    unknown, it includes only the transformer or UNet.
    """

    parameters: int
    active_parameters: int  # per token; fewer than all in a mixture of experts
    layers: int
    d_model: int
    vocab_size: int  # 0 for models without text and for diffusion models
    max_tokens: int  # 0 for diffusion models
    kind: str  # decoder, encoder, encoder-decoder or pictures
    weights: str  # weight format of the published checkpoint


@dataclass(frozen=True, repr=False)
class RuntimeEntry(_Entry):
    """One runtime: whether chipwise can predict its times and run models in it, and what is missing on this machine."""

    title: str
    aliases: tuple[str, ...]
    estimated: bool
    measured: bool
    missing: str | None  # why chipwise cannot measure models in this runtime here


@dataclass(frozen=True, repr=False)
class ModelOnDevice(_Entry):
    """One bundled language model on a chip, serving one request at a time in the chip's usual runtime and format."""

    parameters: int
    active_parameters: int  # per token
    runtime: str
    weights: str
    peak_memory_bytes: int
    decode_tokens_per_s: float  # predicted
    low_tokens_per_s: float  # ends of the 90 % interval
    high_tokens_per_s: float
    ttft_s: float
    provenance: str
    on_card: str = ""  # the part of the model on the card, if the rest is on its host


@public
def devices() -> ResultTable[DeviceEntry]:
    """All bundled devices, sorted by name.

    >>> import chipwise
    >>> chipwise.devices()[0].memory_bytes > 0
    True
    """
    found = [_device(name) for name in datasheet.names()]
    return ResultTable(counted(len(found), "device"), found)


@public
def models(contains: str | None = None) -> ResultTable[ModelEntry]:
    """The bundled models by Hugging Face id, followed by those that generate images or videos.

    >>> import chipwise
    >>> [model.name for model in chipwise.models("smollm3")]
    ['HuggingFaceTB/SmolLM3-3B']

    Args:
        contains: Only models whose id contains this text; case does not matter.
    """
    wanted = (contains or "").lower()
    listed = [name for name in model_names() if wanted in name.lower()]
    found = [_picture_model(name) if name in diffusion.KNOWN else _model(name) for name in listed]
    return ResultTable(counted(len(found), "model"), found)


@public
def models_on(
    device: str,
    contains: str | None = None,
    *,
    prompt_tokens: int = 512,
    new_tokens: int = 128,
    host: str | None = None,
) -> ResultTable[ModelOnDevice]:
    """The bundled language models that fit on a chip, largest first, with their predicted speed.

    Runtime and weight format are the chip's usual ones. The table's title says how many of the models fit.

    Args:
        device: A device's name.
        contains: Only models whose id contains this text; case does not matter.
        prompt_tokens: Tokens of the prompt.
        new_tokens: Tokens of the answer.
        host: The host of the graphics card, as in :func:`chipwise.estimate`. If given, models that only fit when split
            between card and host are listed too.

    Raises:
        UnknownName: The device is unknown.
        SpecError: A number of tokens is not positive.
    """
    sheet, wanted = datasheet.load(device), (contains or "").lower()
    names = [name for name in families.names() if wanted in name.lower()]
    decoders = [name for name in names if (arch := resolve(name)).causal and not arch.encoder]
    asked = Request(model="", deployment=Deployment(device=device), prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    answers = estimates([replace(asked, model=name) for name in decoders])
    known = zip(decoders, answers, strict=True)
    found = [_on_device(name, each) for name, each in known if isinstance(each, CostEstimate)]
    if host is not None:
        refused = [name for name, each in zip(decoders, answers, strict=True) if isinstance(each, DoesNotFit)]
        found += _shared(refused, asked, host)
    found.sort(key=lambda each: (-each.parameters, each.name))
    fits = f"{len(found)} of {counted(len(decoders), 'language model')} fit on {sheet.label}"
    fits += "" if host is None else " and its host"
    return ResultTable(
        f"{fits}, which has {sheet.memory_said}; predicted for a prompt of {prompt_tokens:,} tokens", found
    )


def _shared(names: Sequence[str], asked: Request, host: str) -> list[ModelOnDevice]:
    """Returns the models that only fit if they are split between the graphics card and its host.

    Raises:
        Unsupported: Models cannot be split on this device.
    """
    found, problem = [], None
    for name in names:
        try:
            shared = divided(replace(asked, model=name), host=host)
        except Unsupported as error:
            problem = problem or error
            continue
        found += [] if shared.does_not_fit else [_on_device(name, shared)]
    if problem is not None and not found:
        raise problem
    return found


def _on_device(name: str, found: CostEstimate) -> ModelOnDevice:
    rate, (parameters, active) = found.metrics["decode_tokens_per_s"], parameters_of(name)
    assert rate.low is not None  # a decode step always has an interval
    assert rate.high is not None
    return ModelOnDevice(
        name=name,
        parameters=parameters,
        active_parameters=active,
        runtime=found.runtime,
        weights=found.weights,
        peak_memory_bytes=round(found.peak_memory_bytes),
        decode_tokens_per_s=rate.value,
        low_tokens_per_s=rate.low,
        high_tokens_per_s=rate.high,
        ttft_s=found.ttft_s,
        provenance=found.provenance,
        on_card=found.on_card,
    )


def model_names() -> list[str]:
    """The names of the models that :func:`models` lists, in the same order."""
    return [*families.names(), *sorted(diffusion.KNOWN)]


@public
def runtimes() -> ResultTable[RuntimeEntry]:
    """The inference runtimes: which can be predicted, which can be measured, and what is missing to measure here."""
    found = []
    estimated = {table_name(name): name for name in ESTIMATED}
    for row in dict.fromkeys((*estimated, *NEEDS)):
        name = estimated.get(row, row)
        known = ESTIMATED.get(name)
        found.append(
            RuntimeEntry(
                name=name,
                title=known.title if known else name,
                aliases=known.aliases if known else (),
                estimated=known is not None,
                measured=row in NEEDS,
                missing=missing(row) if row in NEEDS else None,
            )
        )
    return ResultTable(f"{len(found)} runtimes", found)


def weight_formats() -> list[str]:
    """Names of the weight formats that the argument ``weights`` accepts."""
    return list(FORMATS)


def _device(name: str) -> DeviceEntry:
    sheet = datasheet.load(name)
    peaks = sheet.peak_flops_per_s
    return DeviceEntry(
        name=sheet.name,
        title=sheet.title,
        vendor=sheet.vendor,
        family=sheet.family,
        kind=sheet.kind,
        year=sheet.year,
        memory_bytes=sheet.mem_capacity_bytes,
        bandwidth_bytes_per_s=sheet.mem_bandwidth_bytes_per_s,
        fp32_flops_per_s=peaks.get(DType.FP32),
        bf16_flops_per_s=peaks.get(DType.BF16),
        fp8_flops_per_s=peaks.get(DType.FP8),
        int8_ops_per_s=peaks.get(DType.INT8),
        board_power_w=None if sheet.board_power is None else sheet.board_power.number,
        price_usd_per_s=None if sheet.price is None else sheet.price.number,
    )


def _picture_model(name: str) -> ModelEntry:
    model, whole = diffusion.KNOWN[name], PICTURE_MODELS.get(name)
    parameters = round(model.parameters) if whole is None else sum(whole.parts().values())
    unet = whole.transformer if whole is not None and isinstance(whole.transformer, UNet) else None
    return ModelEntry(
        name=name,
        parameters=parameters,
        active_parameters=parameters,
        layers=model.layers if unet is None else unet.layers,
        d_model=model.width if unet is None else max(unet.widths),
        vocab_size=0,
        max_tokens=0,
        kind="pictures",
        weights="bf16",
    )


def _model(name: str) -> ModelEntry:
    arch = resolve(name)
    kind = "decoder" if arch.causal else "encoder"
    return ModelEntry(
        name=name,
        parameters=arch.parameters(),
        active_parameters=arch.active_parameters(),
        layers=len(arch.layers),
        d_model=arch.d_model,
        vocab_size=arch.vocab_size,
        max_tokens=arch.max_tokens,
        kind="encoder-decoder" if arch.encoder else kind,
        weights=default_weights(name) or "bf16",
    )
