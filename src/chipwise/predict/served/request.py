"""A request for an estimate. Its fields are checked, and its names are resolved to models, devices and formats."""

from __future__ import annotations

import functools
import operator
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from chipwise.core.dtypes import FORMATS, format_name, weight_format
from chipwise.errors import AmbiguousName, ChipwiseError, SpecError, Unsupported
from chipwise.hardware import datasheet, taught
from chipwise.hardware.datasheet import DeviceProfile, with_part
from chipwise.hardware.runtime import Runtime, default_runtime, on_device, part_named, runtime_named
from chipwise.hardware.suited import OWN, check_reads, default_format, format_in
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.model.arch.formats import mixed, read_formats
from chipwise.model.kinds.sound.stem import LONGEST_S
from chipwise.model.published import alike, families
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import read_model, resolve
from chipwise.predict.served.checkpoints import default_cache
from chipwise.predict.served.deployment import Deployment, changed
from chipwise.predict.served.formats import Formats, formats_of, wide_format
from chipwise.predict.served.plan import Plan, whole_number
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.towers import IMAGE, SOUND, place_of

T = TypeVar("T")
IMAGE_SIZE = (1024, 768)
"""Default width and height of a request's images in pixels."""
MAX_IMAGES = 10_000
THAT_SEES = "Qwen/Qwen2-VL-2B-Instruct"  # an example of a model that answers token by token about images
MAX_TOKENS = 100_000_000
"""Upper limit on prompt tokens, new tokens and requests in flight; larger numbers are treated as mistakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for an estimate. ``batch`` is the number of requests in flight over all attention replicas.

    ``cached_tokens`` of each prompt are in the cache and not computed again; memory is counted as if each request had
    its own copy of them. The matrices of the layers in ``wide_layers`` keep the format of the activations. The tokens
    of ``images`` are added to the prompt, and the vision tower is held in memory and run.
    """

    model: str | Path | ArchSpec
    deployment: Deployment
    batch: int = 1
    prompt_tokens: int = 1024
    new_tokens: int = 128
    cached_tokens: int = 0
    wide_layers: frozenset[int] = frozenset()
    images: int = 0  # images per request
    image_size: tuple[int, int] = IMAGE_SIZE  # pixels, width and height
    audio_s: float = 0.0  # seconds of sound per request, for a model with an audio tower

    def __post_init__(self) -> None:
        for field in ("batch", "prompt_tokens", "new_tokens", "cached_tokens"):
            whole_number(getattr(self, field), field)
        for field in ("batch", "prompt_tokens", "new_tokens"):
            if not 1 <= getattr(self, field) <= MAX_TOKENS:
                raise SpecError(f"must be from 1 to {MAX_TOKENS:,}, not {getattr(self, field)}", field=field)
        whole_number(self.images, "images")
        if not 0 <= self.images <= MAX_IMAGES:
            raise SpecError(f"must be from 0 to {MAX_IMAGES:,}, not {self.images}", field="images")
        if not 0 <= self.audio_s <= LONGEST_S:
            raise SpecError(f"must be from 0 to 86,400 s (a day), not {self.audio_s}", field="audio_s")
        if not 0 <= self.cached_tokens < self.prompt_tokens:
            raise SpecError(
                f"must be from 0 to one less than the prompt's {self.prompt_tokens:,}, not {self.cached_tokens}",
                field="cached_tokens",
            )
        if self.deployment.device is None:
            raise SpecError("must name a device", field="device")

    @property
    def device(self) -> str | Path | DeviceProfile:
        """The device."""
        assert self.deployment.device is not None  # checked in __post_init__
        return self.deployment.device

    def but(self, **changes: Any) -> Request:
        """Returns a copy with ``changes``, which name fields of the request or of its deployment."""
        return changed(self, changes)


def listening(model: str | Path | ArchSpec, audio_s: float | None) -> tuple[str | Path | ArchSpec, float]:
    """Adapts the model to ``audio_s`` seconds of sound; returns the model, and the seconds that its tower reads.

    If the model has an audio stem instead of a tower, the request is only the sound. ``audio_s`` None means the model's
    usual length.

    Raises:
        SpecError: The model does not take audio, or not audio of this length.
    """
    if audio_s is None:
        return model, 0.0
    arch = model if isinstance(model, ArchSpec) else resolve(model)
    return (model, audio_s) if arch.towers else (arch.hearing(audio_s), 0.0)


_looked_at = operator.attrgetter("model", "deployment", "wide_layers")


def names_of(request: Request) -> tuple[object, ...]:
    """The fields of a request that :func:`resolved` depends on, as a cache key."""
    return (*_looked_at(request), request.images > 0, request.audio_s > 0)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The model, device and formats that a request names. If all are equal, requests are estimated together."""

    setting: Setting
    device: DeviceProfile
    weights: str | None  # as named, or the chip's default; None for the checkpoint's 16-bit format


def resolved(request: Request) -> Resolved:
    """Resolves the names in ``request``.

    Raises:
        UnknownName: A model, device, runtime or format is unknown; the message suggests similar names.
        SpecError: A parallel degree does not divide the model.
        Unsupported: The runtime does not run on the device, or does not read the weights.
    """
    model, device = _named(request.model), _named(request.device)
    return _resolved(
        model,
        _changed(model),
        device,
        (_changed(device) or taught.revision(device)) if isinstance(device, str) else 0,
        request.deployment.runtime,
        request.deployment.weights,
        request.deployment.kv,
        request.deployment.plan,
        request.wide_layers,
        request.images > 0,
        request.audio_s > 0,
    )


_runtime_named = functools.lru_cache(maxsize=256)(runtime_named)


@functools.lru_cache(maxsize=65_536)
def _resolved(
    model: str | ArchSpec,
    model_changed: int,
    device: str | DeviceProfile,
    device_changed: int,
    runtime: str | Runtime | None,
    weights: str | None,
    kv: str | None,
    plan: Plan,
    wide_layers: frozenset[int],
    images: bool,
    sound: bool,
) -> Resolved:
    arch = _model(model, model_changed) if isinstance(model, str) else model
    for kind, given, asked in ((IMAGE, "images", images), (SOUND, "audio_s", sound)):
        if asked and not any(place_of(tower) == kind for tower in arch.towers):
            if arch.reads == kind == IMAGE:
                said = "reads one image in each request by itself; do not set images"
            else:
                said = "has no tower that " + (f"reads images, as {THAT_SEES} has" if kind == IMAGE else "hears")
            raise SpecError(f"{arch.name} {said}", field=given)
    if not (images or sound):
        arch = arch.without_towers()  # runtimes need not load towers (vLLM: --limit-mm-per-prompt)
    named = runtime if isinstance(runtime, str) else None
    found = _device(device, device_changed, named) if isinstance(device, str) else device
    if isinstance(runtime, str) and (part := part_named(runtime)) is not None:
        part_of_it = with_part(found, part)
        if part_of_it is None:
            raise Unsupported(f"{runtime} runs on a {part.upper()}, and {found.name} lists none")
        found = part_of_it
    layers: tuple[str, ...] = ()
    named_weights = weights
    if weights is not None and mixed(weights) and format_name(weights) not in FORMATS:
        stated = read_formats(weights, len(arch.layers))
        if stated.matrices:
            raise SpecError("formats per matrix can only be estimated on a calibrated machine", field="weights")
        weights, layers = stated.head, stated.layers
    name = model if isinstance(model, str) else None
    found_runtime, weights = _served(arch, name, found, runtime, weights)
    for each in layers:
        check_reads(found_runtime, each)
    mixture = any(isinstance(layer.ffn, MixtureOfExperts) for layer in arch.layers)
    formats = _formats(name, model_changed, weights, kv, found_runtime, wide_format(found, found_runtime), mixture)
    if layers:
        formats = replace(formats, layers=layers)
    if wide_layers:
        formats = _keeping(formats, wide_layers, arch)
    setting = Setting(arch=arch, plan=plan, formats=formats, runtime=found_runtime)
    return Resolved(setting, found, named_weights if layers else weights)


def _served(
    arch: ArchSpec, name: str | None, device: DeviceProfile, runtime: str | Runtime | None, weights: str | None
) -> tuple[Runtime, str | None]:
    """The runtime and the weight format that a request names, or else the chip's defaults.

    Raises:
        Unsupported: The runtime does not run on the device, or does not read the weights.
    """
    unnamed, decoder = weights in (None, OWN), arch.causal and not arch.encoder
    shipped = default_weights(name) if name is not None and unnamed else None
    stated = shipped if unnamed else weights
    stored = None if stated is None else weight_format(format_name(stated))
    if runtime is None:
        runtime = default_runtime(device, stored, images=not arch.reads_tokens, one_user=decoder)
    found = on_device(_runtime_named(runtime) if isinstance(runtime, str) else runtime, device)
    if unnamed:
        weights = default_format(device, found, shipped, own=weights == OWN or not decoder)
    if weights is not None:
        weights = format_in(found, weights)
        check_reads(found, weights)
    return found, weights


def _keeping(formats: Formats, wide_layers: frozenset[int], arch: ArchSpec) -> Formats:
    unknown = sorted(i for i in wide_layers if not 0 <= i < len(arch.layers))
    if unknown:
        raise SpecError(f"{arch.name} has layers 0 to {len(arch.layers) - 1}, not {unknown[0]}", field="wide_layers")
    return replace(formats, wide_layers=wide_layers)


def _named(given: str | Path | T) -> str | T:
    """Converts a path to text; names and objects stay as they are.

    Raises:
        SpecError: ``given`` is None.
    """
    if given is None:
        raise SpecError("a request needs a model and a device, but one of them is None")
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def _changed(name: object) -> int:
    """Time in nanoseconds at which a file was last changed, for use in cache keys.

    For a folder, it is the time of the folder's ``config.json``. 0 if there is no such file.
    """
    if not isinstance(name, str):
        return 0
    name, _ = alike.split(name)
    try:
        found = os.stat(name)
        if stat.S_ISDIR(found.st_mode):
            found = os.stat(os.path.join(name, "config.json"))
    except (OSError, ValueError):
        return 0
    return found.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _model(name: str, changed: int) -> ArchSpec:
    return resolve(name)


def taken_for(model: object, device: object = None) -> list[str]:
    """Notes on model and device: how ambiguous names were interpreted, and which config fields were not read."""
    found: list[str | None] = []
    if isinstance(model, str | Path):
        place, like = alike.split(model)
        is_file = os.path.exists(place) or place.endswith((".json", ".yaml", ".yml"))
        if like is not None:
            found.append(f"read as a config.json of the family {like}, since its own model_type is not known")
        found.append(_remark(os.fspath(model), _changed(os.fspath(model))) if is_file else families.said_of(place))
    if isinstance(device, str):
        try:
            found.append(datasheet.said_of(device))
        except AmbiguousName:  # the runtime resolves the ambiguity
            found.append(f"{device} was sold with chips of several makers: taken as the one on which the runtime runs")
    return [each for each in found if each is not None]


def parameters_of(model: str | Path | ArchSpec) -> tuple[int, int]:
    """Total and active parameters of a model, towers included."""
    if isinstance(model, ArchSpec):
        return model.parameters(), model.active_parameters()
    return _parameters(os.fspath(model), _changed(os.fspath(model)))


@functools.lru_cache(maxsize=4096)
def _parameters(model: str, changed: int) -> tuple[int, int]:
    arch = _model(model, changed)
    return arch.parameters(), arch.active_parameters()


@functools.lru_cache(maxsize=4096)
def _remark(model: str, changed: int) -> str | None:
    return read_model(model).remark()


@functools.lru_cache(maxsize=4096)
def _device(name: str, changed: int, runtime: str | None = None) -> DeviceProfile:
    """The data sheet of a device; for a phone sold with chips of two makers, the chip on which ``runtime`` runs."""
    try:
        return datasheet.load(name)
    except AmbiguousName as error:
        if runtime is None or not runtime.lower().startswith(("geni", "qnn", "qairt")):
            raise
        own = [each for each in map(datasheet.load, error.candidates) if each.vendor == "Qualcomm"]
        if len(own) != 1:
            raise
        return own[0]


@functools.lru_cache(maxsize=4096)
def _formats(
    model: str | None, changed: int, weights: str | None, kv: str | None, runtime: Runtime, wide: str, mixture: bool
) -> Formats:
    if model is not None and weights is not None:
        kv = kv or default_cache(model, format_name(weights), runtime)
    return formats_of(weights, kv, wide=wide, mixture=mixture)


def problem_of(error: ChipwiseError) -> str:
    """An error's message as one line for a table cell."""
    return " ".join(str(error).split())
