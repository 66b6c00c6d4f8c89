"""A law for the times of model parts (an encoder, a decoder, a text tower) compiled for a Qualcomm NPU, GPU or CPU.

The time of a part is a product of three factors: one for the part in its precision on a typical chip, one for the chip,
and one for the runtime with the precision. The logarithms of the factors are fitted to Qualcomm's published runs. A
part without runs is predicted from its multiply-adds, weights and layers; a chip without runs from its NPU generation.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.predict.graphs.npu_chips import Chip, chip_named
from chipwise.predict.whole_runs.sums import Amount, Constants, Law, Terms, load, named

DATA = Path(__file__).parents[1] / "data" / "phones.json.gz"
USUAL_S, USUAL_LAYERS = 0.01, 500.0  # assumed for a part whose work is unknown
GMACS_A_SECOND, MPARAMS_A_SECOND, MSCORES_A_SECOND = 2000.0, 20000.0, 4300.0  # rates of an NPU of 2022 in 16-bit floats
LAYER_S = 1.5e-6


@dataclass(frozen=True, slots=True)
class PartWork:
    """Work of a part: multiply-adds, parameters and attention scores.

    ``gmacs`` are billions of multiply-adds; for plain transformers, only multiply-adds with weights count. ``mscores``
    are millions of attention scores (heads x positions x positions, summed over layers), which are slow on NPUs.
    ``mparams`` are millions of parameters without token tables.
    """

    gmacs: float
    mparams: float
    mscores: float = 0.0


TRANSFORMERS = (
    *("vit", "beit", "bert", "clip", "siglip", "owl", "detr", "dfine", "swin", "levit", "segformer", "depth_anything"),
    *("sam2", "sam3", "mobilesam", "edgetam", "segment_anything", "video_mae", "jepa", "trocr", "whisper", "opus_mt"),
    *("diffusion", "controlnet", "groot", "pi05", "mask2former", "former", "cvt", "nomic", "minilm", "internvl"),
    *("intern3", "qwen", "flan_t5", "gpt", "dino", "flux", "deit"),
)
"""Words by which attention-based models are recognised in names."""
_WHISPER = {
    "tiny": (PartWork(14, 8, 54), PartWork(0.05, 30, 0.04)),
    "base": (PartWork(30, 20, 108), PartWork(0.09, 52, 0.07)),
    "small": (PartWork(131, 88, 324), PartWork(0.25, 153, 0.22)),
    "medium": (PartWork(458, 307, 864), PartWork(0.7, 456, 0.58)),
    "large_v3_turbo": (PartWork(946, 637, 1440), PartWork(0.2, 172, 0.12)),
}
_TEXT = PartWork(32.7, 86, 21)  # BERT-base on 384 tokens
# Counted from the architectures' papers; texts of BERT-like models are assumed to be 384 tokens long.
WORK: Mapping[str, PartWork] = {
    "vit": PartWork(16.9, 86, 5.6),
    "beit": PartWork(16.9, 86, 5.6),
    "albert_base_v2": PartWork(32.7, 8, 21),
    "bert_base_uncased": _TEXT,
    "electra_bert_base_discrim": _TEXT,
    "distil_bert_base_uncased": PartWork(16.4, 43, 10.6),
    "mobile_bert_uncased": PartWork(9.0, 20, 14),
    "minilm_v2": PartWork(1.4, 10.6, 1.2),
    "nomic_embed_text": PartWork(14.6, 113, 2.4),
    "openai_clip": PartWork(19.8, 124, 6.1),
    "siglip2|image_encoder": PartWork(16.9, 93, 5.5),
    "siglip2|text_encoder": PartWork(5.5, 86, 0.6),
    "owl_vit": PartWork(52, 130, 48),
    "owlv2|vision": PartWork(310, 88, 1867),
    "owlv2|text": PartWork(3, 38, 0.2),
    "depth_anything": PartWork(45, 25, 135),
    "depth_anything_v2": PartWork(45, 25, 135),
    "depth_anything_v3": PartWork(60, 35, 190),
    "video_mae": PartWork(135, 87, 354),
    "vjepa2": PartWork(620, 304, 1610),
    "trocr|encoder": PartWork(12.4, 22, 24),
    "trocr|decoder": PartWork(0.1, 39, 0.05),
    "stable_diffusion_v1_5|text_encoder": PartWork(6.6, 85, 0.9),
    "stable_diffusion_v2_1|text_encoder": PartWork(23.5, 302, 2.2),
    "controlnet_canny|text_encoder": PartWork(6.6, 85, 0.9),
    "sam|encoder": PartWork(340, 90, 480),
    "intern3_5_vl_2b|vision-encoder": PartWork(311, 304, 403),
    "intern3_5_vl_4b|vision-encoder": PartWork(311, 304, 403),
    "opus_mt|encoder": PartWork(5, 19, 3),
    "opus_mt|decoder": PartWork(0.1, 56, 0.05),
    "distil_whisper|encoder": PartWork(131, 88, 324),
    "distil_whisper|decoder": PartWork(0.2, 78, 0.1),
    # not plain (convolutions, windows, pyramids): all multiply-adds are counted together
    "detr_resnet50": PartWork(21, 41),
    "detr_resnet101": PartWork(35, 60),
    "detr_resnet50_dc5": PartWork(40, 41),
    "detr_resnet101_dc5": PartWork(54, 60),
    "conditional_detr_resnet50": PartWork(23, 43),
    "rf_detr": PartWork(30, 32),
    "dfine": PartWork(12.5, 10),
    "swin_tiny": PartWork(4.5, 28),
    "swin_small": PartWork(8.7, 50),
    "swin_base": PartWork(15.4, 88),
    "swinv2_base": PartWork(20, 88),
    "levit": PartWork(0.4, 9.2),
    "segformer_base": PartWork(6.2, 3.8),
    "sam2|encoder": PartWork(105, 39),
    "sam2|decoder": PartWork(3.5, 6),
    "mobilesam|encoder": PartWork(38, 6),
    "mobilesam|decoder": PartWork(2, 4),
    "sam|decoder": PartWork(2, 4),
    "sam3|vision_backbone": PartWork(3000, 450),
    "stable_diffusion_v1_5|unet": PartWork(340, 860),
    "stable_diffusion_v1_5|vae": PartWork(1240, 50),
    "stable_diffusion_v2_1|unet": PartWork(340, 866),
    "stable_diffusion_v2_1|vae": PartWork(1240, 50),
    "controlnet_canny|unet": PartWork(340, 860),
    "controlnet_canny|vae": PartWork(1240, 50),
    "controlnet_canny|controlnet": PartWork(180, 361),
    "efficientformer": PartWork(1.3, 12.3),
    "mobile_vit": PartWork(1.9, 5.6),
    "cvt": PartWork(4.5, 20),
    "efficientvit_b2_cls": PartWork(1.6, 24),
    "efficientvit_l2_cls": PartWork(7, 64),
    **{f"whisper_{size}|encoder": each[0] for size, each in _WHISPER.items()},
    **{f"whisper_{size}|decoder": each[1] for size, each in _WHISPER.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRun:
    """One compiled part of a model on one device."""

    model: str
    component: str
    precision: str
    device: str
    runtime: str
    unit: str = "NPU"
    layers: float | None = None  # operators of the compiled graph

    @property
    def bits(self) -> str:
        """The group of the part's precision: floats, 16-bit integer activations, or 8-bit integer activations."""
        low = self.precision.lower()
        if low.startswith(("float", "fp", "mixed")):
            return "float"
        return "a16" if "a16" in low or low.startswith("w4") else "a8"

    @property
    def work(self) -> PartWork | None:
        """The part's work; None if unknown."""
        return WORK.get(f"{self.architecture}|{self.component.lower()}") or WORK.get(self.architecture)

    @property
    def architecture(self) -> str:
        """The model's name without suffixes for storage formats or training data."""
        return "opus_mt" if self.model.startswith("opus_mt") else re.sub(r"_(quantized|hf|google)$", "", self.model)

    @property
    def base_s(self) -> float:
        """Seconds that the part takes in floating point on a typical chip, estimated only from the part's size."""
        layers = self.layers or USUAL_LAYERS
        if self.work is None:
            return USUAL_S * math.sqrt(layers / USUAL_LAYERS)
        products = math.hypot(self.work.gmacs / GMACS_A_SECOND, self.work.mparams / MPARAMS_A_SECOND)
        busy = products + self.work.mscores / MSCORES_A_SECOND
        return busy + layers * LAYER_S

    @property
    def transformer(self) -> bool:
        """Whether the model is attention-based; such parts have separate terms for each chip."""
        return any(word in self.model for word in TRANSFORMERS)

    @property
    def part(self) -> str:
        """Key of the terms for the part in its precision."""
        return f"{self.model}|{self.component}|{self.precision}"

    @property
    def place(self) -> str:
        """The key of the half-width for this run."""
        return f"{self.unit}|{self.bits}"


def part_law(run: PartRun) -> Law:
    """The law for the seconds of a part: a single amount, :attr:`PartRun.base_s`, multiplied by the fitted factors."""
    chip, unit, bits = chip_named(run.device), run.unit, run.bits
    runtime = "qnn" if run.runtime in ("qnn_dlc", "qnn_context_binary", "precompiled_qnn_onnx") else run.runtime
    own, there = f"{run.architecture}|{run.component}", (f"|{chip.npu}", f"|{chip.name}") if run.transformer else ()
    terms: list[tuple[str, float]] = [
        *named("part", (own, f"{own}|{bits}", run.part)),
        *named(
            "kind", (f"{unit}|{bits}", f"{unit}|{run.precision}", f"{runtime}|{unit}", f"{run.runtime}|{bits}|{unit}")
        ),
        *named(
            "runtime",
            (
                f"{own}|{unit}",
                f"{run.part}|{run.runtime}|{unit}",
                *(f"{run.part}|{run.runtime}|{unit}{chip}" for chip in there),
            ),
        )[1:],
        *_chip_terms(chip, run.device, unit, bits, runtime),
        *_size_terms(run, chip),
    ]
    return (Amount(run.base_s, 0, tuple(terms)),)


def _chip_terms(chip: Chip, device: str, unit: str, bits: str, runtime: str) -> Terms:
    levels = (chip.market, f"npu {chip.npu}", chip.name, device)
    return tuple(
        (f"chip|{level}|{unit}{more}", 1.0)
        for level in levels
        for more in ("", f"|{bits}", f"|{runtime}", f"|{bits}|{runtime}")
    )


def _size_terms(run: PartRun, chip: Chip) -> Terms:
    """Terms for the size of a part: terms that all chips share, and terms of its chip."""
    head = "layers" if run.work is None else "plain" if run.work.mscores else "counted"
    size = math.log(run.base_s / USUAL_S)
    levels = (
        f"{run.unit}|{run.bits}",
        f"npu {chip.npu}|{run.unit}",
        f"{chip.name}|{run.unit}",
        f"{chip.name}|{run.unit}|{run.bits}",
    )
    return ((head, 1.0), (f"{head} size", size), *((f"{head} size|{level}", size) for level in levels))


@functools.cache
def constants() -> Constants:
    """The bundled constants."""
    return load(DATA)
