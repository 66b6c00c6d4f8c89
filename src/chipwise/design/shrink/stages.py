"""The stages of pruning a model: data, importance, block costs, block losses, choice, healing, export, measuring.

Every stage stores its result in ``state/`` and reuses a stored result. A run that was killed can therefore continue,
and a new method or limit repeats only the stages that depend on it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest, plain
from chipwise.core.dtypes import dtype_of
from chipwise.core.fields import convert
from chipwise.core.files import read_json, read_mapping, write_json
from chipwise.deploy.export.onnx import check_size, export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.shrink.block_costs import Clock, Costs, LocalClock, measure_costs
from chipwise.design.shrink.block_losses import Replacement, replacement_losses
from chipwise.design.shrink.block_selection import (
    Limits,
    Method,
    bytes_of,
    choose_exactly,
    choose_first_layers,
    choose_uniform,
    options_of,
)
from chipwise.design.shrink.distillation import Distiller, Healing
from chipwise.design.shrink.importance import (
    Statistics,
    gather,
    importance_order,
    load_statistics,
    matrix_inputs,
    reordered,
    repaired,
    save_statistics,
)
from chipwise.design.shrink.material import Comparison, Material
from chipwise.design.shrink.sizes import Sizes, compact, cut_arch, cut_weights, reorder, require_cuttable, whole_sizes
from chipwise.design.shrink.texts import BATCH_TOKENS
from chipwise.errors import Infeasible
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.nn.precision import Precision, kept_precision
from chipwise.model.ops.workload import Workload
from chipwise.model.walk.calibration import AUTO, LEARNED, Choice, choose, quantiser
from chipwise.training.loop.checkpoint import fingerprint
from chipwise.training.loop.learned_rounding import Distance, learned_or_chosen, weights_of

Named = dict[str, Tensor]
OnProgress = Callable[[str, int, int], None]  # stage, amount done, total
SCORING_BATCHES = 2
_TIGHTENINGS = 6  # most times that the latency limit is lowered because the chosen model was measured above it
_PACE = Healing(steps=4)  # steps for timing a healing step


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSettings:
    """Settings of one pruned model."""

    method: Method
    limits: Limits
    healing: Healing

    @property
    def choosing(self) -> str:
        """Digest of the settings on which the choice of a pruned model depends."""
        return digest([self.method, self.limits])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How narrow weights are rounded: a quantiser's name, ``learned`` or ``auto``; and CPU seconds for ``learned``."""

    method: str = AUTO
    cpu_s: float = 0.0  # if above 0, ``auto`` tries ``learned`` too


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A design with rounded weights, ready to be written to a file."""

    design: Design
    weights: Mapping[str, AnyArray]
    packing: Packing = NEAREST
    choice: Choice | None = None  # None if nothing is rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A pruned and healed model, with its loss before and after healing."""

    arch: ArchSpec
    sizes: Sizes
    weights: Named
    loss_before: float
    loss_after: float


class Shrinking:
    """Makes pruned models from one original, for one set of data, one workload and one chip.

    Args:
        material: The original and its data.
        target: Folder for results and ``state/``.
        clock: Measures or predicts the times of models. Default: measures on this machine.
        workload: Prompt tokens, new tokens and batch size of requests.
        weight_format: Weight format of the served model.
        seed: Random seed of batches.
        on_progress: Called with the stage, the number of finished steps, and the number of all steps.
        rounding: How narrow weights of pruned models are rounded. For the original, ``learned`` rounding is never used.
    """

    def __init__(
        self,
        material: Material,
        target: Path,
        *,
        workload: Workload,
        weight_format: str,
        seed: int,
        on_progress: OnProgress,
        clock: Clock | None = None,
        rounding: Rounding = Rounding(),
    ) -> None:
        self.material, self.arch = material, material.arch
        require_cuttable(self.arch)
        check_size(Design(arch=self.arch, weights=weight_format))
        self.original: Named = dict(material.weights)
        self.target, self.state = target, target / "state"
        self.clock = clock or LocalClock(workload, weights=weight_format)
        self.workload, self.weight_format, self.seed, self.on_progress = workload, weight_format, seed, on_progress
        self.value_bytes = float(dtype_of(weight_format).bits) / 8
        self.about = {
            "arch": self.arch.digest,
            "weights": fingerprint(self.original),
            **material.about,
            "workload": plain(workload),
            "format": weight_format,
            "seed": seed,
            **self.clock.about,
        }
        self.rounding = rounding
        self.cpu_s: dict[str, float] = {}

    @functools.cached_property
    def costs(self) -> dict[str, Costs]:
        """Cost model of each time (``ttft``, ``tpot``, ``request``) from block costs; computed once."""

        def make() -> object:
            on_progress = functools.partial(self.on_progress, "time blocks")
            return plain(measure_costs(self.arch, options_of(self.arch), self.clock, on_progress=on_progress))

        kept = self.kept("costs", make, key="by time")
        found = {}
        for name, each in kept.items():
            block_s = {kind: {int(size): s for size, s in sizes.items()} for kind, sizes in each["block_s"].items()}
            found[name] = Costs(base_s=each["base_s"], block_s=block_s)
        return found

    @functools.cached_property
    def precision(self) -> Precision:
        """Number format of matrix products in training, the same in all sessions of a run."""
        return kept_precision(self.state / "precision.json")

    @property
    def whole_bytes(self) -> float:
        """Bytes of the original's weights in the served format."""
        return bytes_of(self.arch, whole_sizes(self.arch), self.value_bytes)

    @functools.cached_property
    def ordered(self) -> tuple[Named, Statistics]:
        """The original's weights ordered by importance, and the statistics in that order."""
        begun = time.process_time()
        self.on_progress("order by importance", 0, 1)
        file = self.state / "statistics.safetensors"
        found = load_statistics(file)
        if found is None:
            found = gather(self.arch, self.original, self.material.examples)
            save_statistics(found, file)
        order = importance_order(self.arch, self.original, found)
        self.on_progress("order by importance", 1, 1)
        self.cpu_s["order"] = time.process_time() - begun
        return reorder(self.original, order), reordered(found, order)

    @functools.cached_property
    def comparison(self) -> Comparison:
        """The original's results on the training data."""
        stage = "original on training data"
        with self._timed(stage):
            on_part = functools.partial(self.on_progress, stage)
            return self.material.comparison(self.ordered[0], self.state, precision=self.precision, on_part=on_part)

    def judge(self, arch: ArchSpec, weights: Named) -> float:
        """Loss of a pruned model on held-out data; see :class:`chipwise.design.shrink.material.Material`."""
        return self.material.judge(arch, weights, self.ordered[0], self.state, precision=self.precision)

    def replacements(self) -> list[Replacement]:
        """Losses of every block at every size; results that an earlier session stored are reused."""
        weights, found = self.ordered
        path = self.state / "replacements.json"
        known = list(convert(tuple[Replacement, ...], read_json(path), path.name)) if path.exists() else []

        def keep(done: list[Replacement]) -> None:
            if len(done) > len(known):
                write_json(path, [asdict(item) for item in done])

        comparison = self.comparison
        with self._timed("score blocks"):
            return replacement_losses(
                self.arch,
                weights,
                found,
                options_of(self.arch),
                comparison,
                batches=SCORING_BATCHES,
                known=known,
                keep=keep,
                on_progress=functools.partial(self.on_progress, "score blocks"),
            )

    def choose(self, settings: CutSettings) -> tuple[Named, Sizes]:
        """Chooses sizes by the settings' method; returns the repaired weights, still at full size, and the sizes."""
        weights, found = self.ordered
        replacements = self.replacements() if settings.method == "exact" else []

        def pick(within: Limits) -> Sizes:
            if settings.method != "exact":
                simple = choose_uniform if settings.method == "uniform" else choose_first_layers
                return simple(self.arch, self.costs, within, value_bytes=self.value_bytes)
            return choose_exactly(self.arch, replacements, self.costs, within, value_bytes=self.value_bytes)

        sizes = self._choice(settings, pick)
        return repaired(self.arch, weights, found, sizes), sizes

    def heal(self, settings: CutSettings, weights: Named, sizes: Sizes) -> Cut:
        """Prunes and heals the model; returns it healed or unhealed, whichever has the lower loss on held-out data."""
        arch, part = compact(cut_arch(self.arch, sizes), cut_weights(self.arch, sizes, weights))
        distiller = self._healer(arch, part, settings.healing, f"healing-{settings.method}")
        healed = distiller.run(lambda step, steps, _loss: self.on_progress("heal", step, steps))
        self.cpu_s["heal"] = healed.cpu_s
        before, after = self.judge(arch, part), self.judge(arch, healed.weights)
        return Cut(
            arch=replace(arch, name=f"{self.arch.name}-cut"),
            sizes=sizes,
            weights=healed.weights if after < before else {name: value.contiguous() for name, value in part.items()},
            loss_before=before,
            loss_after=min(before, after),
        )

    def healing_step_s(self, weights: Named, sizes: Sizes) -> float:
        """Measures the CPU seconds of a healing step at these sizes, with a few steps whose result is discarded."""
        arch, part = compact(cut_arch(self.arch, sizes), cut_weights(self.arch, sizes, weights))
        distiller = self._healer(arch, part, _PACE, "pace")
        found = distiller.run(lambda *_: None)
        distiller.path.unlink()
        return found.cpu_s / _PACE.steps

    def _healer(self, arch: ArchSpec, part: Named, healing: Healing, name: str) -> Distiller:
        return Distiller(
            arch,
            part,
            self.comparison,
            healing=healing,
            seed=self.seed,
            path=self.state / f"{name}.safetensors",
            precision=self.precision,
        )

    def write(self, cut: Cut, place: Path) -> Rounded:
        """Writes a Hugging Face folder ``model`` and a file ``model.onnx``; returns the file's rounded weights."""
        arrays = {name: value.numpy() for name, value in cut.weights.items()}
        self.material.write(Design(arch=cut.arch, weights=self.weight_format), arrays, place / "model")
        found = self.rounded(cut.arch, cut.weights, learned=f"rounding-{place.name}")
        export(found.design, found.weights, place / "model.onnx", packing=found.packing)
        return found

    def rounded(self, arch: ArchSpec, weights: Named, *, learned: str | None = None) -> Rounded:
        """Rounds weights for serving, by the requested quantiser or by the one whose model is closest to the original.

        Args:
            arch: The model's architecture.
            weights: The model's weights.
            learned: Name of the checkpoint of learned rounding. None: learned rounding is not used.
        """
        design = Design(arch=arch, weights=self.weight_format)
        arrays = {name: value.numpy() for name, value in weights.items()}
        if self.weight_format == "fp32":
            return Rounded(design=design, weights=arrays)
        inputs = matrix_inputs(arch, weights, self.material.examples)
        packing, asked = Packing(inputs=inputs.get), self.rounding.method

        def judge(own: ArchSpec, rounded: Mapping[str, AnyArray]) -> float:
            tensors = {name: torch.from_numpy(value) for name, value in rounded.items()}
            return self.judge(own, tensors)

        among = tuple(QUANTISERS) if asked in (AUTO, LEARNED) else (asked,)
        choice = choose(design, arrays, packing, judge, among=among)
        packing = replace(packing, quantiser=quantiser(choice.method))
        if learned is not None and self.rounding.cpu_s:
            choice, found = learned_or_chosen(
                design,
                arrays,
                packing,
                self._distance(arch.with_tied(False)),
                choice=choice,
                judge=judge,
                method=asked,
                cpu_budget_s=self.rounding.cpu_s,
                path=self.state / f"{learned}.safetensors",
                on_progress=self.on_progress,
            )
            if found is not None:
                design, arrays, packing = found.design, dict(found.weights), found.packing
        return Rounded(design=design, weights=arrays, packing=packing, choice=choice)

    def _distance(self, arch: ArchSpec) -> Distance:
        """Returns a function that computes a module's distance from the original on batch ``number``."""

        def distance(model: nn.Module, number: int) -> Tensor:
            batch = self.comparison.lesson(number, tokens=BATCH_TOKENS, seed=self.seed + 1)
            return self.comparison.distance(arch, weights_of(model), batch)

        return distance

    def measure(self, place: Path) -> tuple[Measurement, Measurement]:
        """Measures the exported pruned model and the exported original in alternation.

        Raises:
            MeasurementError: One of the two files cannot be measured.
        """
        self.on_progress("measure", 0, 1)
        found = []
        for item in measure_alternately(
            [place / "model.onnx", self.original_file], self.workload, rounds=3, attempts=1
        ):
            if not isinstance(item, Measurement):
                raise item
            found.append(item)
        self.on_progress("measure", 1, 1)
        return found[0], found[1]

    @property
    def original_file(self) -> Path:
        """Path of the exported original, which is written once."""
        path = self.state / "original.onnx"
        if not path.exists():
            found = self.rounded(self.arch, self.original)
            export(found.design, found.weights, path, packing=found.packing)
        return path

    def _choice(self, settings: CutSettings, pick: Callable[[Limits], Sizes]) -> Sizes:
        """Chooses sizes whose measured latency meets the limits, or reads the stored choice.

        A pruned model's measured latency may differ from the sum of its block costs. If it exceeds a limit, the choice
        is repeated with a limit that is lower by the same factor.
        """
        name = f"choice-{settings.method}"
        kept = self.kept(name, lambda: plain(self._within(pick, settings.limits)), key=settings.choosing)
        return Sizes(heads=tuple(kept["heads"]), neurons=tuple(kept["neurons"]))

    def _within(self, pick: Callable[[Limits], Sizes], limits: Limits) -> Sizes:
        within, nearest = limits, ""
        whole = whole_sizes(self.arch)
        for _ in range(_TIGHTENINGS):
            sizes = pick(within)
            if not limits.times_s or sizes == whole:
                return sizes
            cut, full = self.clock.requests([cut_arch(self.arch, sizes), self.arch])
            shares = {name: cut[name] / full[name] for name in limits.times_s}
            over = {
                name: shares[name] / (limit_s / self.costs[name].cut_s(self.arch, whole))
                for name, limit_s in limits.times_s.items()
            }
            if max(over.values()) <= 1:
                return sizes
            nearest = ", ".join(
                f"{name} {units.show(share, 'share')} of the original's" for name, share in shares.items()
            )
            tighter = {name: s / over[name] * 0.995 if over[name] > 1 else s for name, s in within.times_s.items()}
            within = replace(within, times_s=tighter)
        raise Infeasible(f"no cut meets the latency limits {self.clock.where}; loosen them (closest cut: {nearest})")

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Context manager that records the CPU seconds of a stage; only the first session that runs it records them."""
        begun = time.process_time()
        yield
        spent = time.process_time() - begun
        self.cpu_s[stage] = self.kept(f"seconds-{stage.replace(' ', '-')}", lambda: spent)

    def kept(self, name: str, make: Callable[[], object], *, key: str = "") -> Any:
        """Returns the stored result if it has the same key; otherwise calls ``make`` and stores its result."""
        path = self.state / f"{name}.json"
        if path.exists():
            held = read_mapping(path)
            if held["key"] == key:
                return held["value"]
        write_json(path, {"key": key, "value": make()})
        return read_mapping(path)["value"]
