"""Calibration: measures this machine's rates in the runtime that will serve, in about a minute.

Rates of single nodes come from small graphs (``node_rates.py``), or from whole models where a runtime's nodes cannot be
timed (``model_rates.py``). Whole models, random and small or large, then give the cost of a pass, memory and tails. For
the profile's check each of them is predicted by a fit that excluded it.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

from chipwise.core.errors import InputError, Unsupported
from chipwise.hardware.detect import detect
from chipwise.hardware.device import LARGE_BYTES, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.ops import Phase, Workload
from chipwise.profile.drift import drift
from chipwise.profile.exporting import check_exporter
from chipwise.profile.harness import check_threads, measure
from chipwise.profile.learning import Observed, Sample, cross_validate, fit_passes, prepare, refit, stored_bytes
from chipwise.profile.measurement import Measurement
from chipwise.profile.microbench import cases
from chipwise.profile.model_rates import best_rates, fit_model_rates
from chipwise.profile.node_rates import bandwidths, fit_terms, time_cases
from chipwise.profile.random_models import (
    WEIGHTS,
    export_nearest,
    large_designs,
    random_classifiers,
    random_denoisers,
    random_designs,
    random_rankers,
)
from chipwise.spec import Design, RankingStem

Progress = Callable[[str, float], None]
DEFAULT_S = 75.0
LARGE_FROM_S = 60.0  # shorter calibrations measure small models alone
LARGE_S = 32.0  # large matrices and large models together
CASES_S = 16.0  # small graphs
MODEL_S = 1.4  # one small model: starting, warming up, timing
MODELS = {"with nodes": (12, 120), "alone": (60, 96)}  # fewest and most small models
PROMPTS = (64, 64, 24, 128)  # in turns, where whole models are all there is
NEW_TOKENS = 64
BATCHES = (1, 8, 32, 128, 512)  # requests of one candidate, in turns
LARGE_WORKLOAD = Workload(prompt_tokens=32, new_tokens=24)
NODES_TIMED = ("onnxruntime", "fake")  # runtimes for which ONNX Runtime's nodes are timed (the fake one stands for any)
IMAGES_TIMED = ("onnxruntime", "fake")  # runtimes whose files hold image classifiers
LOADING_COPIES = 5  # of a model's weights that exporting and loading it may hold at once


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = DEFAULT_S,
    seed: int = 0,
    on_progress: Progress | None = None,
    base: MachineProfile | None = None,
    on_nodes: Callable[[MachineProfile], None] | None = None,
    images: bool = False,
    ranking: bool = False,
    denoisers: bool = False,
) -> MachineProfile:
    """Measures this machine and returns its profile.

    Args:
        runtime: The runtime that will serve.
        threads: Its threads.
        seconds: Target duration on an idle machine. It sets how many models are measured; from a minute on, models
            larger than most caches are among them.
        seed: Of the random models.
        on_progress: Called with the name of the step and the share that is done.
        base: A profile of this machine whose node rates are used instead of timing nodes.
        on_nodes: Called with the node rates as an unfinished profile, which may be the ``base`` of another calibration.
        images: Calibrate for image classifiers: their nodes too, and whole models that read images instead of tokens.
        ranking: Calibrate for ranking models, likewise.
        denoisers: With ``images``, every second whole model draws images.

    Raises:
        InputError: ``seconds`` is no positive number, or there are more threads than cores.
        MeasurementError: A measuring process failed.
        UnknownName: There is no such runtime.
        Unsupported: No exporter writes models for it.
    """
    check_exporter(runtime)
    check_threads(threads)
    if not 0 < seconds < math.inf:
        raise InputError(f"seconds: calibration takes a positive, finite time, not {seconds}")
    tell = on_progress or (lambda step, share: None)
    nodes = base is not None or runtime in NODES_TIMED
    large = seconds >= LARGE_FROM_S and runtime != "fake" and not (images or ranking)
    if (images or ranking) and runtime not in IMAGES_TIMED:
        raise Unsupported(
            f"{'image classifiers' if images else 'ranking models'} are measured in {IMAGES_TIMED[0]}, not in {runtime}"
        )
    blank = blank_profile(runtime, threads)
    if base is not None:
        blank = replace(blank, terms=base.terms, curves=base.curves)
    elif nodes:
        wanted = cases(large=large, images=images, ranking=ranking)
        terms, curves = fit_terms(time_cases(wanted, threads=threads, on_progress=tell))
        blank = replace(blank, terms=terms, curves=curves)
        if on_nodes is not None:
            on_nodes(blank)
    left_s = seconds - (CASES_S if nodes and base is None else 0.0) - (LARGE_S if large else 0.0)
    least, most = MODELS["with nodes" if nodes else "alone"]
    draw = random_classifiers if images else random_rankers if ranking else random_designs
    designs = draw(min(most, max(least, round(left_s / MODEL_S))), seed=seed)
    if denoisers:
        designs[1::2] = random_denoisers(len(designs) // 2, seed=seed + 1)
    if large:
        designs += [design for design in large_designs() if _has_room(design)]
    measured = measure_models(designs, runtime=runtime, threads=threads, vary=not nodes, on_progress=tell)
    return fit_profile(blank, measured)


def blank_profile(runtime: str, threads: int) -> MachineProfile:
    """A profile of this machine to which nothing has been fitted."""
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
    """The profile that measured models give. Node rates are ``blank``'s if it has any, else fitted to the models too.

    In its check every model is predicted by a fit that excluded it: pass costs, factors, residual, tails, memory, and
    node rates where models alone give them.
    """
    reference_s = typical_reference([sample.measured for sample in measured])
    blank = replace(blank, reference_s=reference_s, runtime_version=measured[0].measured.runtime_version)
    # Reference work beside other processes measures those; where the models are all there is, it is then left out.
    samples = [with_drift(s, reference_s) if blank.terms or s.measured.clean else s for s in measured]
    fit = fit_with_nodes if blank.terms else fit_alone
    profile = fit(blank, samples)
    busy = sum(not sample.measured.clean for sample in samples)
    return replace(
        profile,
        checks=cross_validate(samples, lambda kept: fit(blank, kept)),
        calibration_models=prepare(profile, samples).to_rows(),
        clean=not busy,
        notes=(f"{busy} of {len(samples)} models were timed on a busy machine; calibrate again when it is idle",)
        if busy
        else (),
    )


def fit_with_nodes(blank: MachineProfile, samples: Sequence[Observed]) -> MachineProfile:
    """``blank``, which has node rates, with all that whole models give."""
    peaks = {weights: 2 / blank.terms[f"matmul.{weights}.matrix"]["products"] for weights in WEIGHTS}
    profile = replace(blank, passes=fit_passes(blank, samples), roofs=bandwidths(blank.curves), peaks=peaks)
    return refit(profile, prepare(profile, samples))


def fit_alone(blank: MachineProfile, samples: Sequence[Observed]) -> MachineProfile:
    """``blank`` with everything fitted to whole models."""
    rates = fit_model_rates(samples)
    peaks, roofs = best_rates(samples, blank.machine)
    profile = replace(blank, terms=rates.terms, curves=rates.curves, passes=rates.passes, peaks=peaks, roofs=roofs)
    return refit(profile, prepare(profile, samples))


def typical_reference(measured: Sequence[Measurement]) -> dict[str, float]:
    """Median times of the reference work over all models, those timed on a quiet machine if there are five."""
    quiet = [item for item in measured if item.clean]
    found = [item.environment["reference_s"] for item in (quiet if len(quiet) >= 5 else measured)]
    return {name: float(np.median([item[name] for item in found if name in item])) for name in found[0]}


def with_drift(sample: Sample, reference_s: Mapping[str, float]) -> Sample:
    """``sample`` with its drift from ``reference_s``."""
    since = drift(sample.measured.environment["reference_s"], reference_s)
    return replace(sample, measured=replace(sample.measured, drift=since))


def measure_models(
    designs: Sequence[Design], *, runtime: str, threads: int, vary: bool, on_progress: Progress
) -> list[Sample]:
    """Each design, or the nearest that ``runtime`` supports, measured once; with ``vary``, under several prompts."""
    samples = []
    with tempfile.TemporaryDirectory(prefix="chipwise-") as folder:
        for i, wanted in enumerate(designs):
            design, path = export_nearest(runtime, wanted, Path(folder))
            prompt = PROMPTS[i % len(PROMPTS)] if vary else PROMPTS[0]
            workload, repeats, prefills = Workload(prompt_tokens=prompt, new_tokens=NEW_TOKENS), 126, 12
            if isinstance(design.arch.stem, RankingStem):
                # One candidate a request stands for many requests at once, too: candidates ranked one by one.
                batch = BATCHES[i % len(BATCHES)] if design.arch.stem.candidates == 1 else 1
                repeats = prefills = 100 if batch < 128 else 12
                workload = Workload(prompt_tokens=1, new_tokens=1, batch=batch)
            elif design.arch.stem is not None:
                workload, repeats, prefills = Workload(prompt_tokens=design.arch.stem.tokens, new_tokens=1), 200, 200
            elif stored_bytes(design, workload) > LARGE_BYTES:
                workload, repeats, prefills = LARGE_WORKLOAD, 46, 5
            found = measure(
                path,
                workload,
                runtime=runtime,
                threads=threads,
                repeats=repeats,
                prefills=prefills,
                seconds=0.3,
                attempts=1,
            )
            path.unlink()
            samples.append(Sample(design=design, measured=found))
            on_progress("models", (i + 1) / len(designs))
    return samples


def _has_room(design: Design) -> bool:
    """Whether the free memory holds the copies of the weights that exporting and loading take."""
    return LOADING_COPIES * stored_bytes(design, LARGE_WORKLOAD) < float(psutil.virtual_memory().available)
