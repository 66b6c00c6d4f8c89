"""Training images of a run, stored in one file together with the classifier that scores generated images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import read_bytes, storage, write_atomic
from chipwise.core.record import Record
from chipwise.errors import MeasurementError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.latents.spec import Latents
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.dataset import Split
from chipwise.training.data.images.labelled import LabelledImages
from chipwise.training.data.images.pixels import png, read_parts
from chipwise.training.data.images.sources import ImagesSpec
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model, quantised, read
from chipwise.training.tasks.array_data import ArrayData, exported
from chipwise.training.tasks.diffusion.dataset import DRAWN, Classifier, FlowImages
from chipwise.training.tasks.diffusion.frechet import Moments
from chipwise.training.tasks.diffusion.latents import Codec, train_codec
from chipwise.training.tasks.protocol import Exported, Losses

BATCH = 64
HALF = 127.5  # maps pixel values 0 to 255 to -1 to 1
WIDTH, HEADS = 48, 3  # width and heads of the classifier; its features have this width
SHOWN_STEPS = (1, 2, 4, 8, 16)
SHOWN_GUIDANCE = (1.0, 1.5, 2.0, 3.0, 5.0)  # guidance scales shown in the report for guided models
LEARNT_FROM = 20_000  # most images that an autoencoder is trained on
COMPARED = 320  # images per Fréchet distance in the comparison of step counts
SAMPLER = "sampler.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSpec(ImagesSpec):
    """Source of the training images; see :class:`chipwise.training.data.images.sources.ImagesSpec`."""

    classifier_steps: int = 300  # training steps of the classifier whose features the distances use
    autoencoder_steps: int = 600  # training steps of an autoencoder, if the space has latents

    def __post_init__(self) -> None:
        super(DrawnSpec, self).__post_init__()
        if self.classifier_steps < 1:
            raise SpecError(f"must be at least 1, not {self.classifier_steps}", field="classifier_steps")
        if self.autoencoder_steps < 1:
            raise SpecError(f"must be at least 1, not {self.autoencoder_steps}", field="autoencoder_steps")


class DiffusionData(ArrayData[DrawnSpec, ImageSpace, FlowImages]):
    """Training images and their classifier; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    recipe: Mapping[str, object] = {"batch_windows": BATCH, "matrix_rate": 0.02, "table_rate": 0.006}
    quick = DRAWN
    spec_type, part, dataset, kind, name = DrawnSpec, "image", FlowImages, "flows", "flows"

    def identity(self) -> str:
        """A digest of everything that determines the file."""
        image = self.inputs
        return digest([self.spec, image.size, image.channels, image.classes, *self._factors])

    @property
    def _factors(self) -> list[int]:
        """Pixels per side of a latent, for each kind of latents in the space."""
        return [factor for factor in self.inputs.latents if factor > 1]

    def make(self) -> tuple[FlowImages, Mapping[str, object]]:
        """Reads the images, and trains the classifier and the autoencoders on them."""
        found, parts = read_parts(self.spec, self.base, self.inputs)
        half = np.full((1, 1, 1), HALF, np.float32)
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        data = LabelledImages.of_parts(parts, found.classes, (half, half))
        classifier, error = self._classifier(data)
        splits: tuple[Split, ...] = ("validation", "test")
        moments = {split: Moments.of(classifier.features(data.examples(split)[0])) for split in splits}
        codecs = {factor: self._codec(data, factor) for factor in self._factors}
        made = FlowImages.of_images(data, classifier, moments, codecs)
        return made, {"source": found.source, "licence": found.licence, "classifier_error": error}

    def _codec(self, data: LabelledArrays, factor: int) -> Codec:
        """An autoencoder trained on the training images."""
        chosen = np.random.default_rng(0).permutation(len(data.train[0]))[:LEARNT_FROM]
        images = data.scaled(data.train[0][chosen])
        asked = Latents(factor=factor, channels=self.inputs.channels)
        return train_codec(images, asked, steps=self.spec.autoencoder_steps, seed=0)

    def _classifier(self, data: LabelledArrays) -> tuple[Classifier, float]:
        """Trains the classifier; returns it and its error rate on validation data. Deterministic on one machine."""
        from chipwise.training.loop.trainer import train

        arch = judging_arch(self.inputs)
        result = train(
            arch,
            data,
            steps=self.spec.classifier_steps,
            seed=0,
            folder=self.folder / "classifier",
            recipe=Recipe(batch_windows=BATCH),
            precision="fp32",
        )
        return Classifier(arch=arch, weights=read(result.weights)), result.loss

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of an image divided by its number of patches."""
        each = self.inputs.size**2 * self.inputs.channels
        patch = space.values(rows, "patch").astype(np.int64) * space.factors(rows)
        return np.asarray(each / (self.inputs.size // patch) ** 2, np.float64)

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Generates images with the exported graph, one at a time; returns their contributions to the Fréchet distance.

        Raises:
            MeasurementError: Generated images are not finite.
        """
        images = self._drawn(item, split)
        values = self.arrays.distances(images, split)
        if not np.isfinite(values).all():
            raise MeasurementError(f"{item.folder}: the exported model generates images that are not finite")
        return Losses(values=values, sizes=np.ones(len(values)))

    def _drawn(self, item: Exported, split: Split) -> NDArray[np.float32]:
        """Generates images (n, C, Y, X) with the exported graph."""
        noise, labels = self.arrays.noise(item.design.arch, split, DRAWN)
        with exported(item) as session:
            pairs = zip(noise, labels, strict=True)
            return np.stack([session.draw(one[None], np.array([label]))[0].copy() for one, label in pairs])

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Images that winner and reference design generate for each label in several numbers of steps.

        The result also contains the Fréchet distance for each number of steps, and the flow loss. For guided models, it
        also contains the distance for several guidance scales, at the model's own number of steps.
        """
        arrays, shown = self.arrays, {}
        for who, item in (("winner", winner), ("baseline", reference)):
            if item is None:
                continue
            denoiser = item.design.arch.head_as(Denoiser)
            model = load_model(item.design.arch, item.weights)
            model = model if item.design.weights == "fp32" else quantised(model, item.design.weights)
            rows = []
            for steps in sorted({*SHOWN_STEPS, denoiser.steps}):
                images = arrays.drawn(model, split="test", served=replace(denoiser, steps=steps), most=COMPARED)
                rows.append(
                    {
                        "steps": steps,
                        "distance": float(arrays.distances(images, "test").mean()),
                        "images": [png(_pixels(image)) for image in images[: len(arrays.classes)]],
                    }
                )
            guided = []
            for scale in sorted({*SHOWN_GUIDANCE, denoiser.guidance}) if denoiser.guided else ():
                images = arrays.drawn(model, split="test", served=replace(denoiser, guidance=scale), most=COMPARED)
                guided.append({"guidance": scale, "distance": float(arrays.distances(images, "test").mean())})
            shown[who] = {
                "rows": rows,
                **({"guided": guided, "guidance": denoiser.guidance} if guided else {}),
                "steps": denoiser.steps,
                "solver": denoiser.solver,
                "shift": denoiser.shift,
                "flow_loss": arrays.flow_loss(model),
                **({} if denoiser.latents is None else {"latents": self._rebuilt(denoiser.latents.factor)}),
            }
        inputs, labels = arrays.test
        error = units.show(Record.read(self.facts).get("classifier_error", float), "share")
        return {
            "drawn": shown,
            "labels": list(arrays.classes),
            "real": [png(inputs[np.flatnonzero(labels == label)[0]]) for label in range(len(arrays.classes))],
            "judge": f"its error rate on validation images is {error}",
        }

    def _rebuilt(self, factor: int) -> dict[str, object]:
        """Fréchet distances from real images: of test images after encoding and decoding, and of the originals."""
        images = self.arrays.examples("test", slice(COMPARED))[0]
        rebuilt = self.arrays.codecs[factor].rebuilt(images)
        return {
            "factor": factor,
            "distance": float(self.arrays.distances(rebuilt, "test").mean()),
            "real": float(self.arrays.distances(images, "test").mean()),
            "error": float(((rebuilt - images) ** 2).mean()),
        }

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes the Hugging Face folder with label names, and a sampler for ``model.onnx`` that needs no torch."""
        super().ship(item, folder, files)
        write_atomic(folder / SAMPLER, read_bytes(Path(__file__).with_name(SAMPLER)))

    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """The names of the labels."""
        return {"config.json": {"labels": list(self.arrays.classes)}}


def judging_arch(image: ImageSpace) -> ArchSpec:
    """Architecture of the classifier for images of this size: two layers on about four by four patches."""
    sides = [side for side in range(1, image.size + 1) if image.size % side == 0]
    patch = min(sides, key=lambda side: (abs(image.size / side - 4), side))
    stem = ImageStem(image_size=image.size, patch=patch, channels=image.channels, prefix_tokens=0)
    attention = Attention(
        heads=HEADS, kv_heads=HEADS, head_size=WIDTH // HEADS, qkv_bias=True, out_bias=True, rope=False, causal=False
    )
    ffn = FeedForward(width=4 * WIDTH, activation="gelu", gated=False, bias=True)
    return ArchSpec(
        name="judge",
        stem=stem,
        head=Classes(count=image.classes, pooling="mean"),
        d_model=WIDTH,
        layers=(Layer(attention=attention, ffn=ffn),) * 2,
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=True,
        positions="learned",
    )


def _pixels(image: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Converts an image (C, Y, X) from -1 to 1 to 8-bit pixels."""
    return np.clip(np.round(image * HALF + HALF), 0, 255).astype(np.uint8)
