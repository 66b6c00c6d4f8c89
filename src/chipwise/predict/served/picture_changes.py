"""A few ways to generate an image faster. The formula for the image's time also predicts their effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.served.pictures import estimate_of, picture_of
from chipwise.predict.served.served_energy import constants
from chipwise.predict.whole_runs.diffusion import Picture, picture_law
from chipwise.predict.whole_runs.sums import value_of

DISTILLED = 4  # steps of a few-step distilled model
LEAST = 1.02  # least speed-up worth showing


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the request or the model, and how many times faster it makes each image."""

    what: str
    times: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PictureExplanation(Result):
    """The parts of an image's time, and changes that shorten this time, largest speedup first."""

    estimate: RunEstimate
    changes: tuple[Change, ...]

    def headline(self) -> str:
        """The estimate's headline, and the part that takes most of the time."""
        most, share = max(self.estimate.shares.items(), key=lambda item: item[1])
        return f"{self.estimate.headline()}; {units.show(share, 'share')} of it is {most}"

    def rows(self) -> list[dict[str, object]]:
        """One row per part of the time, followed by one row per change."""
        shares = [{"what": name, "share": share} for name, share in self.estimate.shares.items()]
        return [*shares, *({"what": each.what, "times_faster": each.times} for each in self.changes)]


def explain_pictures(
    model: str, *, device: str, steps: int | None = None, batch: int = 1, devices: int = 1
) -> PictureExplanation:
    """Explains the time of a batch of images of the usual size. The arguments are those of ``picture_of``."""
    picture = picture_of(model, device=device, steps=steps, batch=batch, devices=devices)
    now = _each_s(picture)
    priced = [Change(what=what, times=now / _each_s(other), why=why) for what, why, other in _others(picture)]
    worth = sorted((change for change in priced if change.times >= LEAST), key=lambda change: -change.times)
    return PictureExplanation(estimate=estimate_of(model, picture), changes=tuple(worth))


def _others(picture: Picture) -> Iterator[tuple[str, str, Picture]]:
    model, batch, devices = picture.model, 4 * picture.batch, 2 * picture.devices
    if picture.steps > DISTILLED:
        why = "needs a model distilled to few steps"
        yield f"{DISTILLED} steps instead of {picture.steps}", why, replace(picture, steps=DISTILLED)
        half = picture.steps // 2
        yield (
            f"{half} steps instead of {picture.steps}",
            "more steps improve the image less and less; a multistep solver (arXiv:2211.01095) needs fewer for "
            "the same image",
            replace(picture, steps=half),
        )
    if model.passes > 1:
        one = replace(picture, model=replace(model, passes=1))
        yield "one pass per step instead of two", "needs a guidance-distilled model", one
    small = replace(picture, height=picture.height // 2, width=picture.width // 2)
    yield f"{small.width} x {small.height} pixels", "a quarter of the positions, a sixteenth of the attention", small
    coarse = replace(picture, model=replace(model, pixels=2 * model.pixels))
    yield f"positions of {2 * model.pixels} pixels instead of {model.pixels}", "needs coarser latents", coarse
    yield f"a batch of {batch}", "the fixed cost of a batch is shared", replace(picture, batch=batch)
    yield f"{devices} devices", "devices split positions and exchange keys", replace(picture, devices=devices)


def _each_s(picture: Picture) -> float:
    """Seconds per image in the batch of ``picture``."""
    return float(value_of(picture_law(picture), constants()["pictures_s"].terms())) / picture.batch
