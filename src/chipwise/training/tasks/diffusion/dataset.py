"""Data set of images for diffusion: a denoiser learns to move noise to images along straight paths (rectified flow).

At time t the input is (1 − t) noise + t image, whose velocity is image − noise; the loss is the mean squared error of
the predicted velocity. Guided models are trained with 10 % of the labels hidden. The metric is the Fréchet distance of
generated images. A latent model is trained on the images' latents (``latents.py``), contains the decoder, and is scored
on decoded images.

References:
    Liu et al. 2023, arXiv:2209.03003 (rectified flow). Times with a logit-normal distribution: Esser et al. 2024
    (Stable Diffusion 3), arXiv:2403.03206, section 3.1. Label dropout: Ho and Salimans 2022, arXiv:2207.12598,
    algorithm 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.latents.spec import FACTORS, Latents
from chipwise.training.data.arrays import LabelledArrays
from chipwise.training.data.dataset import HeldOutScore, Split, fitting
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model
from chipwise.training.tasks.diffusion.frechet import Moments, distances
from chipwise.training.tasks.diffusion.latents import Codec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


DRAWN = 640  # images generated for an evaluation
ROWS = 128  # images generated at a time
DROPPED = 0.1  # share of labels hidden from a guided model, as in DiT
SEEDS: Mapping[Split, int] = {"validation": 1, "test": 2}


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A small classifier, whose features are used for the Fréchet distance."""

    arch: ArchSpec
    weights: Mapping[str, AnyArray]

    @cached_property
    def model(self) -> Any:
        """The classifier as a torch module."""
        return load_model(self.arch, self.weights)

    def features(self, images: NDArray[np.float32]) -> Float64Array:
        """Inputs of the classifier's head, (n, width), for scaled images (n, C, Y, X)."""
        import torch

        found: list[Any] = []
        handle = self.model.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].double().numpy()))
        try:
            with torch.no_grad():
                for start in range(0, len(images), ROWS):
                    self.model(torch.from_numpy(np.ascontiguousarray(images[start : start + ROWS])))
        finally:
            handle.remove()
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class FlowImages(LabelledArrays):
    """Images for diffusion, with the scoring classifier; see :class:`chipwise.training.data.arrays.LabelledArrays`."""

    classifier: Classifier
    moments: Mapping[Split, Moments]  # of the real images' features, by part
    codecs: Mapping[int, Codec] = field(default_factory=dict)  # autoencoders by the width of a latent in pixels

    def require_fit(self, arch: ArchSpec) -> None:
        """Raises InputError if the model is not a denoiser, or its images or labels differ from the data's."""
        denoiser, shape = fitting(arch.head, Denoiser, f"{arch.name} does not generate images"), arch.stem.shape
        if shape != self.shape(arch):
            raise InputError(f"the model generates images of {shape}, the data has {self.shape(arch)}")
        if denoiser.labels != len(self.classes):
            raise InputError(f"the model knows {denoiser.labels} labels, the data has {len(self.classes)}")

    def _codec(self, arch: ArchSpec) -> Codec | None:
        """The autoencoder for the model's latents; None if the model generates pixels.

        Raises:
            InputError: The data has no autoencoder for these latents.
        """
        latents = arch.head_as(Denoiser).latents
        if latents is None:
            return None
        codec = self.codecs.get(latents.factor)
        if codec is None or codec.latents != latents:
            known = " and ".join(_described(each.latents) for each in self.codecs.values()) or "none"
            raise InputError(
                f"the model's latents are {_described(latents)}; those of the data's autoencoders: {known}"
            )
        return codec

    def shape(self, arch: ArchSpec) -> tuple[int, ...]:
        """The shape of the model's outputs: images or latents."""
        channels, rows, columns = self.train[0].shape[1:]
        codec = self._codec(arch)
        if codec is None:
            return channels, rows, columns
        factor = codec.latents.factor
        return codec.latents.depth, rows // factor, columns // factor

    def held(self, arch: ArchSpec) -> Mapping[str, AnyArray]:
        """The decoder's weights; see :class:`chipwise.training.data.dataset.HoldsWeights`."""
        codec = self._codec(arch)
        if codec is None:
            return {}
        return {name: value for name, value in codec.weights.items() if name.startswith("decoder.")}

    def batch(self, arch: ArchSpec, recipe: Recipe, number: int, *, seed: int) -> tuple[Tensor, ...]:
        """Scaled images or latents, their labels, noise and times."""
        import torch

        images, labels = super().batch(arch, recipe, number, seed=seed)
        codec = self._codec(arch)
        images = images if codec is None else codec.encode(images)
        rows, random = len(labels), np.random.default_rng([seed, number, 2])
        noise = random.standard_normal(tuple(images.shape), dtype=np.float32)
        denoiser = arch.head_as(Denoiser)
        if denoiser.guided:
            dropped = np.random.default_rng([seed, number, 4]).random(rows) < DROPPED
            labels = torch.where(torch.from_numpy(dropped), denoiser.labels, labels)
        times = 1 / (1 + np.exp(-random.standard_normal(rows)))
        return images, labels, torch.from_numpy(noise), torch.from_numpy(times.astype(np.float32))

    def loss(self, model: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Mean squared error of the velocity over the batch."""
        import torch

        images, labels, noise, times = batch
        t = times[:, None, None, None]
        moving, wanted = (1 - t) * noise + t * images, images - noise
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            found: Tensor = model(moving, times, labels)
        return ((found.float() - wanted) ** 2).mean()

    def noise(self, arch: ArchSpec, split: Split, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Noise (count, C, Y, X) and labels (count,) for evaluation, equal for all models with this output shape."""
        shape = (DRAWN, *self.shape(arch))
        noise = np.random.default_rng([SEEDS[split], 3]).standard_normal(shape, dtype=np.float32)
        return noise[:count], np.arange(DRAWN)[:count] % len(self.classes)

    def distances(self, images: NDArray[np.float32], split: Split) -> Float64Array:
        """Contribution of each generated image, (n,), to the Fréchet distance from the real images of ``split``."""
        return distances(self.classifier.features(images), self.moments[split])

    def judge(
        self,
        model: Any,
        *,
        split: Split = "validation",
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> HeldOutScore:
        """Fréchet distance of images that ``model`` generates, with the model's number of steps."""
        images = self.drawn(model, split=split, most=most, dtype=dtype)
        return HeldOutScore(loss=float(self.distances(images, split).mean()))

    def drawn(
        self,
        model: Any,
        *,
        split: Split,
        served: Denoiser | None = None,
        most: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> NDArray[np.float32]:
        """Generates images (n, C, Y, X) with ``model``, scaled as in training; ``most`` limits their number n.

        Steps, solver and guidance are those of ``served`` if given, else those of the model.
        """
        import torch

        from chipwise.model.kinds.denoiser.module import draw

        served = served or model.arch.head_as(Denoiser)
        noise, labels = self.noise(model.arch, split, DRAWN if most is None else max(2, min(most, DRAWN)))
        device = next(model.parameters()).device
        found = []
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            for start in range(0, len(labels), ROWS):
                begun, told = (torch.from_numpy(each[start : start + ROWS]).to(device) for each in (noise, labels))
                found.append(draw(model, begun, told, served).float().cpu().numpy())
        return np.concatenate(found)

    def flow_loss(self, model: Any) -> float:
        """Mean squared error of the velocity on test images, at evenly spaced times."""
        import torch

        rows = slice(DRAWN)
        (images,), labels = self.examples("test", rows), self.part("test")[1][rows]
        noise, _ = self.noise(model.arch, "test", len(labels))
        codec = self._codec(model.arch)
        images = images if codec is None else codec.encode(torch.from_numpy(np.ascontiguousarray(images))).numpy()
        times = (np.arange(len(labels), dtype=np.float32) + 0.5) / len(labels)
        parts = [torch.from_numpy(np.ascontiguousarray(x)) for x in (images, labels, noise, times)]
        with torch.no_grad():
            return float(self.loss(model, parts, torch.float32))

    def fields(self) -> Mapping[str, AnyArray]:
        """Arrays of the file: those of ``LabelledArrays``, and those of classifier, moments and autoencoders."""
        held: dict[str, AnyArray] = {"classifier": np.array(json.dumps(to_data(self.classifier.arch)))}
        held |= {f"classifier.{name}": value for name, value in self.classifier.weights.items()}
        for split, moments in self.moments.items():
            held |= {f"moments.{split}.mean": moments.mean, f"moments.{split}.covariance": moments.covariance}
        for factor, codec in self.codecs.items():
            held[f"codec.{factor}"] = np.array(json.dumps(plain(codec.latents)))
            held |= {f"codec.{factor}.{name}": value for name, value in codec.weights.items()}
        return {**held, **super().fields()}

    @classmethod
    def of_fields(cls, file: Mapping[str, AnyArray]) -> Self:
        """Builds the data set from the arrays of a file."""
        if "classifier" not in file:
            raise ValueError("contains no classifier to score images")

        def below(start: str) -> dict[str, AnyArray]:
            return {name.removeprefix(start): file[name] for name in file if name.startswith(start)}

        arch = from_data(json.loads(str(file["classifier"])), file="the classifier's architecture")
        codecs = {
            factor: Codec(
                latents=build(Latents, json.loads(str(file[f"codec.{factor}"]))), weights=below(f"codec.{factor}.")
            )
            for factor in FACTORS
            if f"codec.{factor}" in file
        }
        moments = {split: Moments(**below(f"moments.{split}.")) for split in SEEDS}
        classifier = Classifier(arch=arch, weights=below("classifier."))
        return cls.of_images(LabelledArrays.of_fields(file), classifier, moments, codecs)

    @classmethod
    def of_images(
        cls,
        images: LabelledArrays,
        classifier: Classifier,
        moments: Mapping[Split, Moments],
        codecs: Mapping[int, Codec],
    ) -> Self:
        """Builds the data set from labelled images, the classifier for scoring, and the autoencoders."""
        held = {each.name: getattr(images, each.name) for each in fields(images)}
        return cls(**held, classifier=classifier, moments=moments, codecs=codecs)


def _described(latents: Latents) -> str:
    return f"{latents.factor} pixels wide (decoder with {latents.width} channels)"
