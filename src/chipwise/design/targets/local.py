"""Targets whose costs a calibration predicts: this machine, or another machine with a stored profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chipwise.core import units
from chipwise.deploy.calibrate.calibrate import MODEL_S, MODELS, NODES_TIMED, calibrate, cases_s
from chipwise.deploy.measure.store import kept_as, saved_profile
from chipwise.deploy.runtimes import installed_version
from chipwise.design.limits import Constraint
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.targets.bench import Bench, Benched
from chipwise.design.targets.chance import spread_of
from chipwise.design.targets.cost_model import CostModel, unknown_shares
from chipwise.design.targets.sustained import with_cold_limits
from chipwise.errors import SpecError
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import SearchSpace

CALIBRATION_S, CALIBRATION_SHARE = 45.0, 0.2  # most CPU seconds, and most of the budget as a share
ALONE_SHARE = 0.03  # share if the budget trains one model, whose design is measured before its training
FAST = 0.5  # duration on a fast machine, relative to the usual one
CALIBRATION_TOKENS_PER_S = 100_000.0  # budgets in tokens get a second of calibration per this many tokens


class CalibratedTarget(Benched, CostModel):
    """A machine with a calibrated profile. It can be measured only if it is this machine.

    Args:
        spec: The run.
        space: The run's space.
        profile: The calibration.
        bench: Measures on the device; None if nothing is measured.

    Raises:
        SpecError: The run uses MFU or MBU, and the calibration lacks the peak that they need.
    """

    limits: tuple[Constraint, ...] = ()

    def __init__(self, spec: RunSpec, space: SearchSpace, profile: MachineProfile, bench: Bench | None) -> None:
        absent = f"{profile.machine.name} is known only by its profile and cannot be measured from here"
        Benched.__init__(self, bench, absent)
        wanted = {item.metric for item in spec.limits} | {item.metric for item in spec.goals}
        for metric in wanted & (unknown := unknown_shares(space, profile)).keys():
            part = "constraints" if metric in spec.constraints else "objectives"
            raise SpecError(unknown[metric], field=f"{part}.{metric}")
        CostModel.__init__(
            self, space, spec.workload, profile, rates=spec.target.rates, prompt_p99=spec.prompt_p99, used=wanted
        )

    @property
    def title(self) -> str:
        """The processor's name."""
        return self.profile.machine.name

    def with_sustained_limits(self, spec: RunSpec) -> RunSpec:
        """Converts limits on sustained speed; see :func:`chipwise.design.targets.sustained.with_cold_limits`."""
        return with_cold_limits(spec, self.profile)

    def spreads(self, designs: Sequence[Design]) -> Mapping[str, float]:
        """Standard deviations of the first design's predictions; those of other designs are almost equal."""
        found = {metric: spread_of(bounds) for metric, bounds in self.predict(designs[0]).items()}
        return {metric: spread for metric, spread in found.items() if spread}


def open_local(
    spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None]
) -> CalibratedTarget:
    """Opens this machine; calibrates it unless the run's folder has a profile."""
    profile = _calibrated(spec, space, folder, on_detail)
    bench = Bench(spec, anchors=profile.reference_s, prompt_p99=spec.prompt_p99)
    return CalibratedTarget(spec, space, profile, bench)


def open_profile(
    spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None]
) -> CalibratedTarget:
    """Opens a machine from the profile that ``chipwise calibrate --out`` wrote on that machine.

    Raises:
        SpecError: The file is missing or not a profile; the message names the file and the field.
    """
    profile = MachineProfile.load(Path(spec.folder) / spec.target.device)
    return CalibratedTarget(spec, space, profile, None)


def _calibrated(
    spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None]
) -> MachineProfile:
    if folder.profile.exists():
        return MachineProfile.load(folder.profile)
    target = spec.target
    if (known := _calibrated_before(spec)) is not None:
        on_detail(f"by chipwise calibrate of {known.created[:10]}")
        known.save(folder.profile)
        return known
    profile = calibrate(
        runtime=target.runtime,
        threads=target.threads,
        seconds=_calibration_s(spec.allowance),
        on_progress=lambda what, share: on_detail(f"{what} ({units.show(share, 'share', digits=2)})"),
        kind=spec.space.kind.calibration,
        partial=folder.calibrating,
        own=None if spec.space.own is None else space.drawn,
        again=not spec.allowance.alone,
    )
    known = saved_profile(target.runtime, target.threads)
    if known is not None:
        profile = replace(profile, thermal=known.thermal)
    profile.save(folder.profile)
    return profile


def _calibrated_before(spec: RunSpec) -> MachineProfile | None:
    """The profile that ``chipwise calibrate`` stored for the installed version of the runtime, if any.

    None for models other than text decoders: they are always calibrated within the run.
    """
    if spec.space.own is not None:
        return None
    target = spec.target
    known = saved_profile(kept_as(target.runtime, spec.space.kind.calibration), target.threads)
    if known is None or installed_version(target.runtime) not in (None, known.runtime_version):
        return None
    return known


def least_calibration_s(spec: RunSpec, folder: RunFolder) -> float:
    """Minimum CPU seconds of a run's calibration, on a fast machine; 0 if it has begun or is not needed."""
    if not spec.target.local or folder.profile.exists() or folder.calibrating.exists():
        return 0.0
    if _calibrated_before(spec) is not None:
        return 0.0
    nodes = spec.target.runtime in NODES_TIMED
    models, _ = MODELS["with nodes" if nodes else "alone"]
    return FAST * (models * MODEL_S + (cases_s(_calibration_s(spec.allowance)) if nodes else 0.0))


def _calibration_s(allowed: Allowance) -> float:
    """CPU seconds that a search's calibration should take, at most ``CALIBRATION_S``.

    They are proportional to a budget in tokens, and a share of a budget that covers every phase.
    """
    if allowed.unit == "tokens":
        return min(CALIBRATION_S, allowed.total / CALIBRATION_TOKENS_PER_S)
    share = ALONE_SHARE if allowed.alone else CALIBRATION_SHARE
    return min(CALIBRATION_S, share * allowed.total) if allowed.whole else CALIBRATION_S
