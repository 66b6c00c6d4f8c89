"""Vision as a task: what its run file alone tells."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.files import build
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Picture, TaskData, Words
from chipwise.training.tasks.vision.pictures import drawn
from chipwise.training.tasks.vision.references import proportions

LAW = Law(
    floor=0.05, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False
)  # error share of Fashion-MNIST at sizes of a CPU, about; the level is that of the run's own trainings

ACCURACY = Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True)
LOAD = """\
from transformers import AutoModelForImageClassification

# trust_remote_code is needed only where config.json names a modelling file of its own
model = AutoModelForImageClassification.from_pretrained("winner", trust_remote_code=True)"""
WORDS = Words(
    data="images",
    entry=("image", "images"),
    tokens="patches",
    pace="time per image",
    curve="nats per image",
    does="tells images apart",
    reference="vision transformer in the proportions of DeiT",
    load=LOAD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTask:
    """A transformer tells classes of images apart. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = ACCURACY
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"accuracy": "maximize", "ttft_p50": "minimize"},
            "data": {"source": "fashion-mnist"},
        }
    )
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of images."""
        if space.image is None:
            raise SpecError("says what images are: {size: 28, classes: 10, patch: [4, 7, 14]}", field="space.image")
        if space.image.axes != 2:
            raise SpecError("images have two axes; leave it out", field="space.image.axes")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """DeiT-proportioned designs; see :mod:`chipwise.training.tasks.vision.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """The patch: which is best cannot be told from sizes."""
        return int(choices["patch"])

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads the images; see :class:`chipwise.training.tasks.vision.data.VisionData`."""
        from chipwise.training.tasks.vision.data import VisionData
        from chipwise.training.tasks.vision.sources import ImagesSpec

        assert space.image is not None
        return VisionData(build(ImagesSpec, data, field="data"), base, folder, space.image)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Test images with what winner and reference design say, and the winner's confusion matrix."""
        return drawn(samples)


VISION = VisionTask()
