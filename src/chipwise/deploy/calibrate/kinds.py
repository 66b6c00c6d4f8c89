"""How a machine is calibrated for each kind of model: random models, small graphs and timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chipwise.deploy.calibrate.learning import stored_bytes
from chipwise.deploy.calibrate.microbench import Case, image_cases, ranking_cases, sound_cases
from chipwise.deploy.calibrate.random_models import (
    random_classifiers,
    random_designs,
    random_rankers,
    random_transcribers,
)
from chipwise.hardware.device import LARGE_BYTES
from chipwise.model.arch.design import Design
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.ops.workload import Workload

Draw = Callable[[int, int], list[Design]]
PROMPTS = (64, 64, 24, 128)  # prompt lengths used in turn if only whole models are measured
NEW_TOKENS = 64
BATCHES = (1, 8, 32, 128, 512)  # batch sizes of requests with one candidate, used in turn
LARGE_WORKLOAD = Workload(prompt_tokens=32, new_tokens=24)
PASSES_S = 0.5  # timing of a model that answers in one pass


class Timing(NamedTuple):
    """How one whole model is timed."""

    workload: Workload
    repeats: int
    prefills: int
    seconds: float


def _text(design: Design, number: int, vary: bool) -> Timing:
    prompt = PROMPTS[number % len(PROMPTS)] if vary else PROMPTS[0]
    workload = Workload(prompt_tokens=prompt, new_tokens=NEW_TOKENS)
    if stored_bytes(design, workload) > LARGE_BYTES:
        return Timing(LARGE_WORKLOAD, 46, 5, 0.3)
    return Timing(workload, 126, 12, 0.3)


def _whole_input(design: Design, number: int, vary: bool) -> Timing:
    return Timing(Workload(prompt_tokens=design.arch.request_tokens, new_tokens=1), 200, 200, PASSES_S)


def _candidates(design: Design, number: int, vary: bool) -> Timing:
    """Timing of a ranking model; models with a single candidate per request are also timed in large batches."""
    alone = design.arch.stem_as(RankingStem).candidates == 1
    batch = BATCHES[number % len(BATCHES)] if alone else 1
    repeats = 100 if batch < 128 else 12
    return Timing(Workload(prompt_tokens=1, new_tokens=1, batch=batch), repeats, repeats, PASSES_S)


def _alone_too(own: Draw, count: int, seed: int) -> list[Design]:
    """Returns ``count`` models: a random one that ranks one candidate per request, then one from ``own``, and so on."""
    designs = random_rankers(3 * count, seed=seed)[::3]
    designs[1::2] = own(count // 2, seed)
    return designs


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How a machine is calibrated for one kind of model.

    Attributes:
        models: Name of these models in messages.
        draw: Function that takes a count and a seed, and returns random models.
        timing: Function that takes a model's design, its index and whether prompt lengths vary, and returns how the
            model is timed.
        cases: Small graphs for nodes that only these models have.
        with_own: Function that takes the caller's function for sampling models, a count and a seed, and returns the
            models to measure.
        text: Whether these are text models, which every runtime runs and which are also measured at large sizes.
    """

    models: str
    draw: Callable[..., list[Design]]
    timing: Callable[[Design, int, bool], Timing]
    cases: Callable[[], Iterator[Case]] = lambda: iter(())
    with_own: Callable[[Draw, int, int], list[Design]] = lambda own, count, seed: own(count, seed)
    text: bool = False


CALIBRATED: Mapping[str, Calibrated] = {
    "": Calibrated(models="text models", draw=random_designs, timing=_text, text=True),
    "images": Calibrated(models="image classifiers", draw=random_classifiers, timing=_whole_input, cases=image_cases),
    "ranking": Calibrated(
        models="ranking models",
        draw=random_rankers,
        timing=_candidates,
        cases=ranking_cases,
        with_own=_alone_too,
    ),
    "sounds": Calibrated(
        models="sound models",
        draw=random_transcribers,
        timing=_whole_input,
        cases=sound_cases,
    ),
}
"""Kinds of calibration, by the suffix of the profile's name."""
