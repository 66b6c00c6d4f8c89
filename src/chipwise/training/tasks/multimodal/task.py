"""Questions about images as a task: what its run file alone tells."""

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
from chipwise.training.tasks.multimodal.pictures import drawn
from chipwise.training.tasks.multimodal.references import proportions
from chipwise.training.tasks.protocol import Picture, TaskData, Words

LAW = Law(
    floor=0.02, layers=1.0, head=0.0, text=60.0, size_exponent=0.3, text_exponent=0.34, level_known=False
)  # the shape of the law of images; the level is that of the run's own trainings
RIGHT = Metric(
    name="accuracy", title="share of right answers", unit="share", more_is_better=True, seed_sd=0.08
)  # over six seeds
LOAD = """\
from transformers import AutoModelForImageClassification

model = AutoModelForImageClassification.from_pretrained("winner", trust_remote_code=True)
# model(pixel_values, input_ids): words.json lists the words; a question stands at the end of its room"""
WORDS = Words(
    data="questions",
    entry=("question", "questions"),
    tokens="tokens of image and question",
    pace="time per answer",
    curve="nats per answer",
    does="answers questions about images",
    reference="decoder with image tokens in the proportions of LLaVA",
    load=LOAD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalTask:
    """Image tokens before a question in a small decoder. See :class:`chipwise.training.tasks.protocol.Task`."""

    metric: Metric = RIGHT
    pace: str = "ttft_p50"
    words: Words = WORDS
    law: Law = LAW
    defaults: Mapping[str, Any] = field(
        default_factory=lambda: {
            "workload": {"prompt_tokens": 1, "new_tokens": 1},
            "objectives": {"accuracy": "maximize", "ttft_p50": "minimize"},
            "data": {"source": "shapes"},
        }
    )
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Raises SpecError for a space that says nothing of images and questions."""
        if space.image is None or not space.image.question:
            raise SpecError(
                "says what images and questions are: {size: 32, channels: 3, classes: 14, question: 8, words: 32, "
                "patch: [4, 8]}",
                field="space.image",
            )
        if space.image.axes != 2:
            raise SpecError("images have two axes; leave it out", field="space.image.axes")

    def references(self, space: SpaceSpec) -> Iterator[dict[str, Any]]:
        """Designs in LLaVA's proportions; see :mod:`chipwise.training.tasks.multimodal.references`."""
        return proportions(space)

    def family(self, choices: Mapping[str, Any]) -> Hashable:
        """Patch and merging: which are best cannot be told from sizes."""
        return (int(choices["patch"]), str(choices["merge"]))

    def open(self, data: Mapping[str, Any], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Reads or draws the questions; see :class:`chipwise.training.tasks.multimodal.data.MultimodalData`."""
        from chipwise.training.tasks.multimodal.data import MultimodalData
        from chipwise.training.tasks.multimodal.sources import QuestionsSpec

        assert space.image is not None
        return MultimodalData(build(QuestionsSpec, data, field="data"), base, folder, space.image)

    def pictures(self, samples: Mapping[str, Any]) -> Sequence[Picture]:
        """Test images with questions, right answers and what winner and reference design say."""
        return drawn(samples)


MULTIMODAL = MultimodalTask()
