"""Labelled images in one file of arrays; exported graphs classify one image at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.files import read_mapping
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.hf_vit import labels_of
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.dataset import DataFile
from chipwise.training.data.images.pixels import image_processor, png, read_parts, scales_of
from chipwise.training.data.images.sources import ImagesSpec
from chipwise.training.tasks.array_data import ArrayData, confusion, first_and_wrong
from chipwise.training.tasks.protocol import Exported

SHOWN = 20  # test images shown in the report


class VisionData(ArrayData[ImagesSpec, ImageSpace, LabelledArrays]):
    """Labelled images; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": 128}
    quick = 2_000  # images in an early evaluation
    spec_type, part, dataset, kind, name = ImagesSpec, "image", LabelledArrays, "images", "images"
    identifying = ("size", "channels", "classes")

    def make(self) -> tuple[LabelledArrays, Mapping[str, object]]:
        """Reads the images, and splits them into parts."""
        found, parts = read_parts(self.spec, self.base, self.inputs)
        data = LabelledArrays.of_parts(parts, found.classes, scales_of(parts["train"][0]))
        flip = found.flip if self.spec.flip is None else self.spec.flip
        return data, {"source": found.source, "licence": found.licence, "flip": flip}

    def data(self, arch: ArchSpec) -> DataFile:
        """The images as training data: training shifts them, and mirrors them if their labels stay valid."""
        return DataFile(path=str(self.path), kind="flipped-images" if read_mapping(self.facts)["flip"] else self.kind)

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an image divided by the number of positions after the model's stem."""
        each = self.inputs.size**2 * self.inputs.channels
        grid = self.inputs.size // space.values(rows, "patch").astype(np.int64)
        first = (space.values(rows, "pooling") == "first").astype(np.int64)
        return np.asarray(each / (grid**2 + first), np.float64)

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Some test images with labels and predictions, and the winner's confusion matrix over all test images."""
        (inputs, labels), classes = self.arrays.test, self.arrays.classes
        said = {who: logits.argmax(1) for who, logits in self.answered(winner, reference)[0].items()}
        images = [
            {"image": png(inputs[i]), "label": classes[labels[i]]} | {who: classes[a[i]] for who, a in said.items()}
            for i in first_and_wrong(labels, said["winner"], count=SHOWN)
        ]
        return {
            "images": images,
            "confusion": confusion(labels, said["winner"], len(classes)),
            "classes": list(classes),
        }

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of the classes, and the settings for preprocessing images."""
        data = self.arrays
        return {
            "config.json": labels_of(arch, data.classes),
            "preprocessor_config.json": image_processor(self.inputs.size, data.mean, data.std),
        }
