"""Measures a vision or audio model in parts (tower and decoder) and adds up the parts of a request.

The parts are timed separately. The time to first token is the sum of the tower's passes over a request's images (or
sound) and the decoder's pass over prompt and image tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.deploy.export.exporters import check_memory, export_for
from chipwise.deploy.measure.harness import check_threads
from chipwise.deploy.runtimes import table_name
from chipwise.design.models.measuring import Measured, beside, runtime_of, timed, usual_request
from chipwise.design.run.winner import read_winner
from chipwise.errors import InputError, MeasurementError, SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.image_tokens import Read, image_tokens, sound_tokens
from chipwise.model.kinds.image.gives import as_run, without_projector
from chipwise.model.kinds.image.published import builds_projector
from chipwise.model.ops.workload import Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.built import require_built
from chipwise.predict.cost.model import Predicted, combined
from chipwise.predict.cost.request import throughput
from chipwise.predict.served.request import IMAGE_SIZE, MAX_IMAGES
from chipwise.predict.served.towers import SOUND, place_of

USUAL_SOUND_S = 10.0


@dataclass(frozen=True, repr=False)
class MeasuredParts(Result):
    """Measurements of a vision or audio model's parts, and a request's metrics computed from them.

    ``metrics`` are in SI units: ``ttft_p50`` is the sum of the medians of ``passes`` of the tower and of one of the
    decoder, ``tpot_…`` the decoder's own, ``peak_memory`` the sum of two processes.
    """

    model: str
    passes: int  # of the tower, for all images (or the sound) of a request
    tokens: int  # number of decoder tokens that the images (or the sound) become
    tower: Measured
    decoder: Measured
    metrics: Mapping[str, float]
    predicted: Mapping[str, Predicted]  # predictions of the whole, if both parts were predicted
    notes: tuple[str, ...]  # how the parts were added up, and what was left out

    def headline(self) -> str:
        """The model, the runtime and device, and whether the machine was quiet."""
        found = self.decoder.measurement
        quiet = "clean" if found.clean and self.tower.measurement.clean else "not clean"
        return f"{self.model} in {found.runtime} on {found.device}, in parts, {quiet}"

    def rows(self) -> Sequence[Mapping[str, object]]:
        """One row per metric of the whole: the sum of the measured parts, and of their predictions if both have one."""
        return beside(self.metrics, self.predicted)


def comes_in_parts(model: str | Path) -> bool:
    """Whether ``model`` names a known model with a vision or audio tower, not an exported file or a winner."""
    path = Path(model)
    if path.suffix in (".onnx", ".gguf") or read_winner(path) is not None:
        return False
    return bool(resolve(model).towers)


def measure_parts(
    model: str | Path,
    *,
    images: int = 1,
    image_size: tuple[int, int] = IMAGE_SIZE,
    audio_s: float | None = None,
    runtime: str | None = None,
    threads: int | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str | None = None,
    remote: str | None = None,
    keep: bool = True,
) -> MeasuredParts:
    """Measures the tower and the decoder of a vision or audio model with random weights, and adds them up.

    Args:
        model: A known name, a ``config.json`` or its folder.
        images: Images per request, for a vision model.
        image_size: Their width and height in pixels.
        audio_s: Seconds of sound per request, for an audio model. Default: 10.
        runtime: The runtime to measure in. Default: ONNX Runtime.
        threads: Threads of the runtime. Default: 1.
        batch: Concurrent requests. Default: 1.
        prompt: Prompt tokens, without image tokens. Default: 64.
        new: New tokens. Default: 64.
        weights: Weight format of the decoder; the tower stays in FP32. Default: fp32.
        remote: ``user@host`` of a machine with Python, numpy and the runtime.
        keep: Whether to save both measurements to the measurement store.

    Raises:
        InputError: The model is unknown, has no tower or too few positions, or a part does not fit in memory.
        Unsupported: The tower or the decoder cannot be built; the message names what is missing.
        MeasurementError: A part cannot be loaded or run.
    """
    name = str(model)
    arch = resolve(model)
    if not arch.towers:
        raise InputError(f"{name} has no tower: measure the whole model")
    if not 1 <= images <= MAX_IMAGES:
        raise SpecError(f"must be from 1 to {MAX_IMAGES:,}, not {images}", field="images")
    workload, usual_threads = usual_request(name, batch=batch, prompt=prompt, new=new)
    tower, read, notes = tower_and_request(arch, images=images, image_size=image_size, audio_s=audio_s)
    decoder = replace(arch.without_towers(), name=f"decoder of {name}")
    written = replace(workload, prompt_tokens=workload.prompt_tokens + read.tokens)
    if written.total_tokens > decoder.max_tokens:
        raise InputError(
            f"{name} has {decoder.max_tokens:,} positions; {read.tokens:,} tokens of what it reads, --prompt "
            f"{workload.prompt_tokens} and --new {workload.new_tokens} need {written.total_tokens:,}"
        )
    runtime, threads = table_name(runtime or runtime_of(name)), threads or usual_threads
    if remote is None:
        check_threads(threads)
    parts = (
        (Design(arch=tower), Workload(prompt_tokens=1, new_tokens=1, batch=workload.batch)),
        (Design(arch=decoder, weights=weights or "fp32"), written),
    )
    for design, asked in parts:  # check both before spending minutes on the first
        check_memory(design, asked)
    found = []
    for design, asked in parts:
        with tempfile.TemporaryDirectory() as room:
            path = export_for(runtime, design, Path(room), external_data=remote is None)
            try:
                found.append(timed(path, design, asked, runtime=runtime, threads=threads, remote=remote, keep=keep))
            except MeasurementError as error:
                raise MeasurementError(f"the {design.arch.name}: {str(error).removeprefix(f'{path}: ')}") from None
    return put_together(name, *found, read=read, workload=workload, notes=notes)


def tower_and_request(
    arch: ArchSpec, *, images: int, image_size: tuple[int, int], audio_s: float | None
) -> tuple[ArchSpec, Read, tuple[str, ...]]:
    """The exported tower, its work for all images (or the sound) of a request, and notes on its limits.

    Raises:
        Unsupported: The tower or the decoder cannot be built; the message names what is missing.
        SpecError: The model does not take audio, or an image size is wrong.
    """
    tower, name = arch.towers[0], arch.name
    notes: list[str] = []
    if place_of(tower) == SOUND:
        read = sound_tokens(tower, seconds=USUAL_SOUND_S if audio_s is None else audio_s)
    elif audio_s is not None:
        raise SpecError(f"{name} does not take audio", field="audio_s")
    else:
        width, height = image_size
        one = image_tokens(tower, height=height, width=width)
        read = replace(one, passes=one.passes * images, tokens=one.tokens * images)
    built = replace(tower, name=f"tower of {name}")
    if tower.reads == "image" and builds_projector(tower):
        built = as_run(built)
    else:
        notes.append(_left_out(tower))
        built = without_projector(built)
    _require(built, f"the tower of {name}")
    _require(arch.without_towers(), f"the decoder of {name}")
    return built, read, tuple(notes)


def _left_out(tower: ArchSpec) -> str:
    """Text saying that the projector is not measured, with its size."""
    size = tower.head.parameters(tower, tower.stem)
    share = units.show(size / tower.parameters(), "share", digits=2)
    return f"the projector ({units.number(size)} parameters, {share} of the tower's) cannot be built and is left out"


def _require(arch: ArchSpec, part: str) -> None:
    """Checks that a part can be built.

    Raises:
        Unsupported: It cannot; the message says what is missing and what works instead.
    """
    try:
        require_built(arch, work="measured")
    except Unsupported as error:
        reason = str(error).partition(" cannot be measured: ")[2].partition("; chipwise estimate")[0]
        raise Unsupported(f"{part} cannot be measured: {reason}; chipwise estimate prices the whole model") from None


def put_together(
    name: str, tower: Measured, decoder: Measured, *, read: Read, workload: Workload, notes: Sequence[str] = ()
) -> MeasuredParts:
    """Adds up the parts: passes of the tower, then the decoder.

    Args:
        name: The model.
        tower: The measured tower: one pass over one image of each request in the batch.
        decoder: The measured decoder, with prompt and image tokens.
        read: The passes and tokens of a request's images, or its sound.
        workload: The request without images or sound.
        notes: Further notes.
    """
    metrics = dict(decoder.metrics)
    ttft_s = read.passes * tower.metrics["ttft_p50"] + decoder.metrics["ttft_p50"]
    metrics = {each: value for each, value in metrics.items() if each.startswith("tpot")}
    metrics = {"ttft_p50": ttft_s, **metrics}
    metrics["throughput"] = float(throughput(ttft_s, metrics["tpot_p50"], workload.new_tokens, workload.batch))
    if "peak_memory" in tower.metrics and "peak_memory" in decoder.metrics:
        metrics["peak_memory"] = tower.metrics["peak_memory"] + decoder.metrics["peak_memory"]
    predicted: dict[str, Predicted] = {}
    if tower.predicted is not None and decoder.predicted is not None:
        pass_s, rest = tower.predicted.metrics["ttft_p50"], decoder.predicted.metrics
        predicted = {"ttft_p50": combined(lambda each, after: read.passes * each + after, pass_s, rest["ttft_p50"])}
        predicted |= {each: value for each, value in rest.items() if each.startswith("tpot") and each in metrics}
    several = f"{read.passes} pass{'es' if read.passes > 1 else ''} of the tower and one of the decoder"
    kept = (
        f"TTFT is the sum of the medians of {several} over {read.tokens:,} tokens of images or sound and "
        f"{workload.prompt_tokens} prompt tokens; TPOT is the decoder's",
        "peak memory is the sum of both processes",
        *notes,
    )
    return MeasuredParts(name, read.passes, read.tokens, tower, decoder, metrics, predicted, kept)
