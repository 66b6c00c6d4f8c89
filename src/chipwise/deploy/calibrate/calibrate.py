"""Calibration: measures this machine's rates in the runtime that will serve models; takes about a minute.

Rates of single nodes are fitted to small graphs (``node_rates.py``), or to whole models if the runtime cannot time
single nodes (``model_rates.py``). The cost of a pass, memory and tail latencies are then fitted to measurements of
random whole models, small and large. The profile's reported errors come from cross-validation over these models.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from chipwise.core.statistics import own_speed
from chipwise.deploy.calibrate.kinds import CALIBRATED, LARGE_WORKLOAD, Calibrated, Draw
from chipwise.deploy.calibrate.learning import (
    LEAST_MODELS,
    Observed,
    Sample,
    cross_validate,
    fit_passes,
    prepare,
    refit,
    stored_bytes,
)
from chipwise.deploy.calibrate.microbench import cases, with_fewer_large
from chipwise.deploy.calibrate.model_rates import best_rates, fit_model_rates
from chipwise.deploy.calibrate.node_rates import ROUNDS, bandwidths, fit_terms, time_cases
from chipwise.deploy.calibrate.partial import Partial
from chipwise.deploy.calibrate.random_models import (
    WEIGHTS,
    export_nearest,
    large_designs,
)
from chipwise.deploy.export.exporters import check_exporter
from chipwise.deploy.measure.drift import drift
from chipwise.deploy.measure.harness import Ask, check_threads, measure, staying
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import Stored
from chipwise.deploy.measure.verdict import LIMITS
from chipwise.errors import InputError, Unsupported
from chipwise.hardware.detect import detect
from chipwise.hardware.device import MachineProfile, MemoryCost, PassCost, Tail
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase

Progress = Callable[[str, float], None]
DEFAULT_S = 75.0
LARGE_FROM_S = 60.0  # shorter calibrations measure small models only
LARGE_S = 32.0  # time for large matrices and large models together
BRIEF_BELOW_S = 20.0  # shorter calibrations time fewer large matrices, and each small graph once
CASES_S, BRIEF_CASES_S = 9.0, 4.0  # time for small graphs
FEWER_ROUNDS, BRIEF_ROUNDS = 2, 1  # rounds over the small graphs in calibrations without large models
MODEL_S = 1.6  # time for one small model: starting, warming up, timing
ENOUGH = 2 / 3  # if this share of the models ran on an undisturbed machine, the others are ignored
MODELS = {"with nodes": (12, 120), "alone": (60, 96)}  # minimum and maximum number of small models
NODES_TIMED = ("onnxruntime", "fake")  # runtimes whose nodes are timed in ONNX Runtime (fake is a test double)
NOT_TEXT = {"images": ("onnxruntime", "browser", "fake"), "ranking": NODES_TIMED, "sounds": NODES_TIMED}
"""For each kind of model other than text models: the runtimes in which it is measured."""
SMALL_ONLY = ("browser", "wllama", "executorch", "litert", "fake")  # these run no models of hundreds of megabytes
LOADING_COPIES = 5  # copies of the weights that may be in memory while a model is exported and loaded


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = DEFAULT_S,
    seed: int = 0,
    on_progress: Progress | None = None,
    base: MachineProfile | None = None,
    partial: Path | None = None,
    kind: str = "",
    own: Draw | None = None,
    again: bool = True,
) -> MachineProfile:
    """Measures this machine and returns its profile.

    Args:
        runtime: The runtime to calibrate, the one that will serve.
        threads: Threads of the runtime.
        seconds: Target duration on an idle machine. It determines how many models are measured. With a
            minute or more, models larger than most caches are measured too.
        seed: Random seed of the random models.
        on_progress: Called with the name of the step and the share done.
        base: A profile of this machine. If given, its node rates are used and no nodes are timed.
        partial: A file for intermediate results, from which a stopped calibration continues.
        kind: The models to calibrate for, a key of ``CALIBRATED`` (``kinds.py``); empty for text models.
        own: Function that takes a count and a seed, and samples models similar to those that will be predicted, for
            example designs from a search space. These models are measured instead of random ones. For ranking models,
            they alternate with random models that rank one candidate per request, in batches of 1 to 512.
        again: Whether models that a disturbed machine slowed down are measured once more, which may double the time.

    Raises:
        InputError: ``seconds`` is not a positive number, or there are more threads than cores.
        MeasurementError: A measuring process failed.
        UnknownName: No such runtime is known.
        Unsupported: No exporter writes models for the runtime.
    """
    check_exporter(runtime)
    check_threads(threads)
    if not 0 < seconds < math.inf:
        raise InputError(f"seconds: calibration takes a positive, finite time, not {seconds}")
    tell = on_progress or (lambda step, share: None)
    nodes = base is not None or runtime in NODES_TIMED
    timed = CALIBRATED[kind]
    large = seconds >= LARGE_FROM_S and runtime not in SMALL_ONLY and timed.text
    brief = seconds < BRIEF_BELOW_S
    if runtime not in (able := NOT_TEXT.get(kind, (runtime,))):
        raise Unsupported(
            f"{timed.models} are measured in {' and '.join(n for n in able if n != 'fake')}, not in {runtime}"
        )
    blank = blank_profile(runtime, threads)
    kept = Partial(partial, runtime=runtime, threads=threads)
    if base is not None:
        blank = replace(blank, terms=base.terms, curves=base.curves)
    elif nodes:
        wanted = cases(timed.cases(), large=large)
        wanted = with_fewer_large(wanted) if brief else wanted
        rounds = ROUNDS if seconds >= LARGE_FROM_S else BRIEF_ROUNDS if brief else FEWER_ROUNDS
        timed_cases = time_cases(wanted, threads=threads, on_progress=tell, partial=kept, rounds=rounds)
        terms, curves = fit_terms(timed_cases)
        blank = replace(blank, terms=terms, curves=curves)
    left_s = seconds - (cases_s(seconds) if nodes and base is None else 0.0) - (LARGE_S if large else 0.0)
    least, most = MODELS["with nodes" if nodes else "alone"]
    count = min(most, max(least, round(left_s / MODEL_S)))
    designs = timed.draw(count, seed=seed) if own is None else timed.with_own(own, count, seed)
    if large:
        designs += [design for design in large_designs() if _has_room(design)]
    measured = measure_models(
        designs, timed, runtime=runtime, threads=threads, vary=not nodes, on_progress=tell, partial=kept, again=again
    )
    found = fit_profile(blank, measured)
    kept.remove()
    return found


def cases_s(seconds: float) -> float:
    """Seconds for small graphs in a calibration that takes ``seconds``."""
    return BRIEF_CASES_S if seconds < BRIEF_BELOW_S else CASES_S


def blank_profile(runtime: str, threads: int) -> MachineProfile:
    """A profile of this machine before anything is fitted."""
    return MachineProfile(
        machine=detect(),
        runtime=runtime,
        runtime_version="",
        threads=threads,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        terms={},
        curves={},
        passes={phase.value: PassCost(call_s=0.0, per_logit_s=0.0, scale=1.0) for phase in Phase},
        memory=MemoryCost(base_bytes=0.0, per_table_byte=1.0, per_matrix_byte={}),
        tails={phase.value: Tail(ratio=1.0, extra_s=0.0) for phase in Phase},
        checks={},
    )


def fit_profile(blank: MachineProfile, measured: Sequence[Sample]) -> MachineProfile:
    """Fits a profile to measured models. Node rates are those of ``blank`` if it has any, else they are fitted too.

    For the reported errors, every model is predicted by a fit to the other models. This fit covers pass costs, factors,
    residual, tails and memory, and node rates if they are fitted to whole models. P99 is fitted to models that were
    timed while the machine was quiet; if there are fewer than ``LEAST_MODELS`` of these, to all models.
    """
    reference_s = own_reference([sample.measured for sample in measured])
    blank = replace(blank, reference_s=reference_s, runtime_version=measured[0].measured.runtime_version)
    seen = [sample for sample in measured if _slowness(sample, reference_s) <= LIMITS["drift"]]
    counted = seen if len(seen) >= ENOUGH * len(measured) else measured
    samples = [with_drift(sample, reference_s) for sample in counted]
    busy = sum(not sample.measured.clean for sample in samples)
    if loud := len(samples) - busy < LEAST_MODELS:
        samples = [replace(sample, busy_tails=True) for sample in samples]
    fit = fit_with_nodes if blank.terms else fit_alone
    profile = fit(blank, samples)
    return replace(
        profile,
        checks=cross_validate(samples, lambda kept: fit(blank, kept)),
        calibration_models=prepare(profile, samples).to_rows(),
        clean=not busy,
        notes=(
            f"{busy} of {len(samples)} models were timed on a busy machine"
            f"{', and P99 is fitted to them too' if loud else ''}; calibrate again when the machine is idle",
        )
        if busy
        else (),
    )


def fit_with_nodes(blank: MachineProfile, samples: Sequence[Observed]) -> MachineProfile:
    """Returns ``blank``, which must already have node rates, with all other quantities of a profile.

    Peaks and bandwidths follow from the node rates; the others are fitted to whole models. The small graphs may yield
    no rate for the matrix products of a format, for example if the machine was busy throughout. The peak of this format
    is then the highest FLOP/s that a whole model in this format reached in prefill.
    """
    rates = {weights: blank.terms[f"matmul.{weights}.matrix"]["products"] for weights in WEIGHTS}
    peaks = {weights: 2 / rate for weights, rate in rates.items() if rate > 0}
    if len(peaks) < len(rates):
        peaks = best_rates(samples, blank.machine)[0] | peaks
    profile = replace(blank, passes=fit_passes(blank, samples), roofs=bandwidths(blank.curves), peaks=peaks)
    return refit(profile, prepare(profile, samples))


def fit_alone(blank: MachineProfile, samples: Sequence[Observed]) -> MachineProfile:
    """Returns ``blank`` with everything, including node rates, fitted to whole models."""
    rates = fit_model_rates(samples)
    peaks, roofs = best_rates(samples, blank.machine)
    profile = replace(blank, terms=rates.terms, curves=rates.curves, passes=rates.passes, peaks=peaks, roofs=roofs)
    return refit(profile, prepare(profile, samples))


def own_reference(measured: Sequence[Measurement]) -> dict[str, float]:
    """Estimates, from all models' measurements, how long each kind of reference work takes on the undisturbed machine.

    Returns:
        Seconds by name of the reference work.
    """
    found = [own_reference_of(item) for item in measured]
    return {name: own_speed([item[name] for item in found if name in item]) for name in found[0]}


def with_drift(sample: Sample, reference_s: Mapping[str, float]) -> Sample:
    """Returns ``sample`` with the machine's drift relative to ``reference_s`` during each measurement."""
    since = drift(sample.measured.environment["reference_s"], reference_s)
    own = drift(own_reference_of(sample.measured), reference_s)
    return replace(sample, measured=replace(sample.measured, drift=since, own_drift=own))


def own_reference_of(found: Measurement) -> Mapping[str, float]:
    """Seconds of each kind of reference work on the undisturbed machine.

    Older measurements do not contain them; for these, the median seconds are returned.
    """
    times: Mapping[str, float] = found.environment.get("reference_own_s", found.environment["reference_s"])
    return times


def measure_models(
    designs: Sequence[Design],
    timed: Calibrated,
    *,
    runtime: str,
    threads: int,
    vary: bool,
    on_progress: Progress,
    partial: Partial | None = None,
    again: bool = True,
) -> list[Sample]:
    """Measures each design, or the nearest variant that ``runtime`` supports.

    With ``vary``, each is measured at several prompt lengths. With ``again``, a design is measured once more if the
    machine was disturbed throughout. Results in ``partial`` are reused, and new results are stored there.
    """
    kept = partial or Partial(None, runtime=runtime, threads=threads)
    samples = []
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder, staying(runtime, threads) as ask:

        def sample(i: int, turn: str) -> Sample:
            name = f"{turn} {i} {vary} {designs[i].arch.digest} {designs[i].weights}"
            found = kept.restored(name, _restored)
            if found is None:
                found = _measured(
                    designs[i], i, Path(folder), timed, runtime=runtime, threads=threads, vary=vary, ask=ask
                )
                kept.put(name, _kept(found))
            return found

        for i in range(len(designs)):
            samples.append(sample(i, "model"))
            on_progress("models", (i + 1) / len(designs))
        reference_s = own_reference([sample.measured for sample in samples])
        slow = [i for i, sample in enumerate(samples) if again and _slowness(sample, reference_s) > LIMITS["drift"]]
        for done, i in enumerate(slow):
            samples[i] = min(samples[i], sample(i, "model again"), key=lambda sample: _slowness(sample, reference_s))
            on_progress("models again", (done + 1) / len(slow))
    return samples


def _kept(sample: Sample) -> dict[str, object]:
    return Stored(id="", added="", source="calibration", measurement=sample.measured, design=sample.design).to_data()


def _restored(data: object) -> Sample | None:
    """Reads a sample from the output of :func:`_kept`."""
    found = Stored.from_data(data)
    return None if found.design is None else Sample(design=found.design, measured=found.measurement)


def _measured(
    wanted: Design, number: int, folder: Path, timed: Calibrated, *, runtime: str, threads: int, vary: bool, ask: Ask
) -> Sample:
    """Measures the ``number``-th design of a calibration, or its nearest variant that ``runtime`` supports."""
    design, path = export_nearest(runtime, wanted, folder)
    how = timed.timing(design, number, vary)._asdict()
    found = measure(path, runtime=runtime, threads=threads, attempts=1, ask=ask, **how)
    path.unlink()
    return Sample(design=design, measured=found)


def _slowness(sample: Sample, reference_s: Mapping[str, float]) -> float:
    """Slowdown of the machine relative to its undisturbed speed, as a factor ≥ 1."""
    since = drift(own_reference_of(sample.measured), reference_s)
    return 1.0 if since is None else since.size


def _has_room(design: Design) -> bool:
    """Whether free memory suffices for the copies of the weights during export and loading."""
    return LOADING_COPIES * stored_bytes(design, LARGE_WORKLOAD) < float(psutil.virtual_memory().available)
