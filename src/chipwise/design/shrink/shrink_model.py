"""Prunes a Hugging Face model until it meets limits; implements ``chipwise shrink``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.files import read_mapping, storage, write_json
from chipwise.deploy.export.hf import require_folder
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.phases.one_model import TaskScore, data_of, run_of
from chipwise.design.shrink.block_selection import METHODS, Limits, Method
from chipwise.design.shrink.chip_clock import ChipClock
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.sizes import Sizes, whole_sizes
from chipwise.design.shrink.stages import CutSettings, OnProgress, Rounded, Rounding, Shrinking
from chipwise.design.shrink.task_material import TaskMaterial
from chipwise.design.shrink.text_material import TextMaterial
from chipwise.errors import InputError, StudyError, UnitError, UnknownName
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.calibration import AUTO, Choice, learning_s
from chipwise.predict.cost.model import CostEstimate
from chipwise.training.data.text import load_corpus
from chipwise.training.loop.origin import data_spec
from chipwise.training.tasks.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """Result of shrinking: the pruned model, and its metrics compared with the original's."""

    folder: Path  # Hugging Face folder, with model.onnx next to it
    method: Method
    arch: ArchSpec
    sizes: Sizes
    parameters: int
    original_parameters: int
    limit_s: float | None
    predicted_s: float  # predicted seconds of a request
    workload: Workload
    latency: Measurement | None  # None if it was not measured
    original_latency: Measurement | None
    loss_before: float  # on held-out data, before healing: the distance from the original, or the task's loss
    loss_after: float
    held_out: str  # name of the loss on held-out data
    metric: Metric | None  # metric of the task; None for text
    score: TaskScore | None  # of the exported pruned model on the task's test data; None for text
    original_score: TaskScore | None
    estimates: tuple[CostEstimate, CostEstimate] | None  # of original and pruned model, if latency is limited elsewhere
    cpu_s: Mapping[str, float]  # CPU seconds by stage; stages that several methods share count in full for each method
    quantiser: Choice | None = None  # how narrow weights were rounded, and the loss with each way that was tried

    def shown(self, loss: float) -> str:
        """A held-out loss as text, in the task's metric if it has one."""
        return f"{loss:.4f}" if self.metric is None else self.metric.text(loss)

    @property
    def request_s(self) -> tuple[float, float] | None:
        """Median request seconds of the original and the pruned model, measured here or predicted for another chip."""
        if self.estimates is not None:
            whole, cut = self.estimates
            return _predicted_s(whole, self.workload), _predicted_s(cut, self.workload)
        if self.latency is None or self.original_latency is None:
            return None
        return request_of(self.original_latency), request_of(self.latency)

    @property
    def ratio(self) -> float | None:
        """The pruned model's median request time divided by the original's."""
        return None if (both := self.request_s) is None else both[1] / both[0]

    def summary(self) -> dict[str, object]:
        """The result as JSON values, without the individual latency samples."""
        times = {}
        for name, item in (("latency", self.latency), ("original_latency", self.original_latency)):
            if item is not None:
                times[name] = {
                    "request_p50_s": request_of(item),
                    "ttft_p50_s": item.percentile("ttft", 0.5),
                    "ttft_p99_s": item.percentile("ttft", 0.99),
                    "clean": item.clean,
                    "reasons": list(item.reasons),
                }
        found = {
            "method": self.method,
            "folder": str(self.folder),
            "sizes": plain(self.sizes),
            "parameters": self.parameters,
            "original_parameters": self.original_parameters,
            "limit_s": self.limit_s,
            "predicted_s": self.predicted_s,
            "ratio": self.ratio,
            **times,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
            "held_out": self.held_out,
        }
        if self.quantiser is not None:
            found["quantiser"] = plain(self.quantiser)
        if self.score is not None:
            found |= {"score": plain(self.score), "original_score": plain(self.original_score)}
        if self.estimates is not None and (both := self.request_s) is not None:
            device = self.estimates[0].device
            found["predicted"] = {"device": device, "original_request_s": both[0], "request_s": both[1]}
        return found | {"cpu_s": dict(self.cpu_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest:
    """How to shrink a model: limits, data, and settings of the method.

    Attributes:
        latency: Limit on a request's time on the device: a share of the original's (``60 %``) or a time (``3 ms``).
        memory: Limit on the size of the weights: a share or a size (``40 MB``).
        method: ``exact`` (an integer program chooses sizes from the losses of single blocks), or one of the baselines
            ``uniform`` (the same sizes in every layer) and ``truncate`` (keeps the first layers).
        data: Text for scoring and healing: a text source, text files, a run file, or the fields of ``data`` in a run
            file. For a model of another kind, such as an image classifier: a run file whose data is used. Default for a
            winner: the data of its run.
        tokens: Number of tokens in a request's text or prompt.
        new_tokens: Number of tokens that a decoder generates in a request.
        longest: Largest number of tokens per text in healing.
        weights: Weight format of the served model.
        rounding: Quantiser for weights in a narrow format: ``nearest``, ``searched``, ``gptq``, ``learned`` or
            ``auto``, which takes the quantiser with the least loss on held-out data.
        cpu_s: CPU seconds for ``learned`` rounding; if set, ``auto`` tries ``learned`` too.
        healing: Steps and learning rate of healing.
        device: The chip on which latency is limited; times are then predicted from its data sheet. Default: this
            machine, on which times are measured.
        runtime: Runtime on that chip. Default: the chip's usual runtime.
        seed: Random seed of batches.
    """

    latency: str | float | None = "60 %"
    memory: str | float | None = None
    method: Method = "exact"
    data: Sequence[str | Path] | Mapping[str, object] = ("medical-definitions",)
    tokens: int = 32
    new_tokens: int = 16
    longest: int = 64
    weights: str = "fp32"
    rounding: str = AUTO
    cpu_s: float | None = None
    healing: Healing = Healing()  # noqa: RUF009  (frozen)
    device: str | None = None
    runtime: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UnknownName("method", self.method, METHODS)
        self.limits(1.0, 1.0)
        learning_s(self.rounding, self.cpu_s)
        if self.weights == "fp32" and (self.rounding != AUTO or self.cpu_s is not None):
            raise InputError("--rounding and --cpu-seconds apply only to int8 and int4; add --weights int8 or int4")
        if self.device is None and self.runtime is not None:
            raise InputError("--runtime applies only with --device; on this machine, cuts are timed in onnxruntime")

    def material(self, source: Path) -> tuple[TextMaterial | TaskMaterial, Workload]:
        """Loads the model in ``source`` with its data; also returns the workload of one request."""
        if (run := run_of(source, self.data)) is not None:
            return TaskMaterial(source, run, data_of(source, run)), run.workload
        require_folder(source)
        spec, base = data_spec(self.data)
        material = TextMaterial(source, load_corpus(spec, base=base), longest=self.longest)
        return material, Workload(prompt_tokens=self.tokens, new_tokens=self.new_tokens)

    def limits(self, request_s: float, whole_bytes: float) -> Limits:
        """Converts the limits to SI units; shares refer to the original's request seconds and bytes of weights.

        Raises:
            InputError: A limit is not a share or quantity, or is not positive.
        """
        limit_s = limit_of(self.latency, request_s, "time", "latency")
        return Limits(
            times_s={} if limit_s is None else {"request": limit_s},
            memory_bytes=limit_of(self.memory, whole_bytes, "bytes", "memory"),
        )

    def settings(self, limits: Limits) -> CutSettings:
        """Settings for choosing and healing the pruned model."""
        return CutSettings(method=self.method, limits=limits, healing=self.healing)


def shrink_model(
    folder: str | Path,
    request: ShrinkRequest,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    measured: bool = True,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Shrunk:
    """Prunes the model in ``folder`` until it meets limits, and heals it by distillation from the original.

    Args:
        folder: A Hugging Face folder with tokenizer.json and a BERT-style encoder or a Llama-style decoder; or the
            folder of another task's model, such as an image classifier (ViT) or a winner.
        request: Limits, data and method.
        out: Folder to write. Default: ``runs/shrink-<name>``.
        resume: Whether to continue the run in the output folder.
        measured: Whether to measure the pruned model and the original in alternation at the end.
        on_progress: Called with the stage, the number of finished steps, and the number of all steps.

    Raises:
        InputError: The model, a limit or the text cannot be used, or no pruned model meets the limits.
        Unsupported: The model has blocks that chipwise cannot build or prune.
        StudyError: The output folder contains a run with another model or text, or this run but ``resume`` is false.
    """
    source = Path(folder)
    target = Path(out) if out is not None else Path("runs") / f"shrink-{Path(os.path.realpath(source)).name}"
    material, workload = request.material(source)
    clock = None
    if request.device is not None:
        clock = ChipClock(workload, request.weights, request.device, request.runtime, material.arch.causal)
    work = Shrinking(
        material,
        target,
        workload=workload,
        weight_format=request.weights,
        seed=request.seed,
        on_progress=on_progress,
        clock=clock,
        rounding=Rounding(method=request.rounding, cpu_s=learning_s(request.rounding, request.cpu_s)),
    )
    claim(target, work.about, resume=resume)
    costs, whole = work.costs["request"], whole_sizes(work.arch)
    settings = request.settings(request.limits(costs.cut_s(work.arch, whole), work.whole_bytes))
    place = target / request.method
    cut = work.heal(settings, *work.choose(settings))
    rounded = work.write(cut, place)
    times = work.measure(place) if measured and clock is None else (None, None)
    scores = _scores(work, material, rounded, place) if isinstance(material, TaskMaterial) else (None, None)
    estimates = None if clock is None else clock.estimates([work.arch, cut.arch])
    result = Shrunk(
        folder=place / "model",
        method=request.method,
        arch=cut.arch,
        sizes=cut.sizes,
        parameters=cut.arch.parameters(),
        original_parameters=work.arch.parameters(),
        limit_s=settings.limits.times_s.get("request"),
        predicted_s=costs.cut_s(work.arch, cut.sizes),
        workload=workload,
        latency=times[0],
        original_latency=times[1],
        loss_before=cut.loss_before,
        loss_after=cut.loss_after,
        held_out=material.held_out,
        metric=material.run.task_settings.metric if isinstance(material, TaskMaterial) else None,
        score=scores[0],
        original_score=scores[1],
        estimates=None if estimates is None else (estimates[0], estimates[1]),
        cpu_s=dict(work.cpu_s),
        quantiser=rounded.choice,
    )
    write_json(place / "result.json", result.summary())
    return result


def _scores(work: Shrinking, material: TaskMaterial, cut: Rounded, place: Path) -> tuple[TaskScore, TaskScore]:
    """Test scores of the pruned model and of the original, as exported graphs."""
    score = material.score(cut.design, cut.weights, place, cut.packing)
    material.promise(cut.design, score, place / "model")

    def original() -> object:
        found = work.rounded(work.arch, work.original)
        return plain(material.score(found.design, found.weights, work.state, found.packing))

    return score, TaskScore(**work.kept("original-score", original))


def _predicted_s(found: CostEstimate, workload: Workload) -> float:
    """Predicted median seconds of a request, from an estimate."""
    after = (workload.new_tokens - 1) * found.tpot_s if "tpot_p50" in found.metrics else 0.0
    return found.ttft_s + after


def request_of(found: Measurement) -> float:
    """Measured median seconds of a request: prefill and, for a decoder, the tokens after the first one."""
    steps = 0.0 if found.encodes else (found.workload.new_tokens - 1) * found.percentile("tpot", 0.5)
    return found.percentile("ttft", 0.5) + steps


def limit_of(limit: str | float | None, whole: float, kind: str, name: str) -> float | None:
    """Converts a limit to SI units; ``text`` is a share of ``whole`` (``60 %``), a quantity, or None.

    Raises:
        InputError: The limit is not a share or quantity, or is not positive.
    """
    if limit is None:
        return None
    text = str(limit).strip()
    try:
        if text.endswith("%"):
            value = float(text[:-1]) / 100 * whole
        else:
            value = units.parse(text, kind) if isinstance(limit, str) else float(limit)
    except (UnitError, ValueError):
        raise InputError(
            f"--{name} must be a share of the original such as '60 %', or a quantity, not {text!r}"
        ) from None
    if not value > 0:
        raise InputError(f"--{name} must be positive, not {text!r}")
    return value


def claim(target: Path, about: dict[str, object], *, resume: bool) -> None:
    """Reserves a new folder for this run by writing ``about`` to it, or checks that the folder belongs to this run.

    Raises:
        StudyError: The folder contains another run, or it contains this run but ``resume`` is false.
    """
    path, wanted = target / "about.json", json.loads(json.dumps(about))
    if path.exists():
        held = read_mapping(path)
        if differs := [name for name in wanted if held.get(name) != wanted[name]]:
            raise StudyError(
                f"{target}: this folder contains a run that differs in {', '.join(differs)}; choose another --out"
            )
        if not resume:
            raise StudyError(f"{target}: already contains this run; continue with --resume, or choose another --out")
        return
    with storage(target):
        (target / "state").mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)
