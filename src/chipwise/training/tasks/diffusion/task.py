"""Diffusion as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import LATENTS, PIXELS
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.diffusion.pictures import drawn
from chipwise.training.tasks.diffusion.references import proportions
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words

LAW = Law(
    floor=0.05,
    layers=8.0,
    head=0.0,
    text=2_000.0,
    size_exponent=0.3,
    text_exponent=0.5,
    level_known=False,
    one_pass=4.0,
)  # distance of Fashion-MNIST at sizes of a CPU, about; the level is that of the run's own trainings

DISTANCE = Metric(
    name="frechet_distance",
    title="Fréchet distance",
    short="distance",
    seed_sd=0.16,  # eighteen trainings of 60 s: three seeds of six designs (docs/notes/validation.md)
    least_share=1 / 3,  # after a ninth, distances are ten times as large, and the smallest models lead
)
LOAD = """\
from transformers import AutoModel

model = AutoModel.from_pretrained("winner", trust_remote_code=True)
images = model.generate([0, 1, 2], seed=0)  # labels; images (n, channels, rows, columns) from -1 to 1"""
WORDS = Words(
    data="images",
    entry=("image", "images"),
    tokens="patches",
    pace="time per image",
    curve="flow loss",
    does="draws images",
    reference="diffusion transformer in the proportions of DiT",
    load=LOAD,
)
EXAMPLE = "{size: 28, classes: 10, patch: [4, 7], steps: [1, 2, 4, 8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionTask:
    """A transformer draws images of given labels. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = DISTANCE
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"frechet_distance": "minimize", "ttft_p50": "minimize"},
            "data": {"source": "fashion-mnist"},
        }
    )
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of images, or not in how many steps they are drawn."""
        if space.image is None:
            raise SpecError(
                f"says what images are, and in how many steps they are drawn: {EXAMPLE}", field="space.image"
            )
        if not space.image.steps:
            raise SpecError(f"lists the numbers of steps to choose from: {EXAMPLE}", field="space.image.steps")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """DiT-proportioned designs; see :mod:`chipwise.training.tasks.diffusion.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """Patch, latents and steps: which are best cannot be told from sizes."""
        return int(choices["patch"]), int(choices.get(LATENTS, PIXELS)), int(choices["steps"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the images; see :class:`chipwise.training.tasks.diffusion.data.DiffusionData`."""
        from chipwise.training.tasks.diffusion.data import DiffusionData, DrawnSpec

        assert space.image is not None
        return DiffusionData(build(DrawnSpec, data, field="data"), base, folder, space.image)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Images by number of steps, of winner and reference design, with their distances."""
        return drawn(samples)


DIFFUSION = DiffusionTask()
