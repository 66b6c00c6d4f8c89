"""Parts of models on Qualcomm chips: an encoder, a decoder, a text tower, compiled for the NPU, the GPU or the CPU.

Milliseconds of a part are a product: what the part takes in its precision on a usual chip, what the chip makes of it,
and what runtime and precision do there. All are named logarithms fitted to Qualcomm's own published runs; a part that
was not among them is predicted by its multiply-adds, weights and layers, a chip by its generation of NPU.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.predict.sums import Amount, Constants, Law, Terms, load, named

DATA = Path(__file__).parent / "data" / "phones.json.gz"
USUAL_S, USUAL_LAYERS = 0.01, 500.0  # of a part whose work is not known
GMACS_A_SECOND, MPARAMS_A_SECOND, LAYER_S = 1300.0, 11500.0, 1e-6  # of an NPU of 2022 in 16-bit floats, about


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip as its NPU's generation (Hexagon's architecture version) and its class of product tell."""

    name: str
    npu: str
    market: str


# Qualcomm AI Hub's list of devices and Qualcomm's product briefs.
CHIPS: Mapping[str, Chip] = {
    "samsung galaxy s21": Chip("snapdragon-888", "v68", "phone"),
    "samsung galaxy s22": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon xr2 gen 2": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy tab s8": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "xiaomi 12": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "snapdragon 8 gen 1": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy s23": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "snapdragon 8 gen 2": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "qcs8550": Chip("snapdragon-8-gen-2", "v73", "phone"),
    "qcs8450": Chip("snapdragon-8-gen-1", "v69", "phone"),
    "samsung galaxy s24": Chip("snapdragon-8-gen-3", "v75", "phone"),
    "snapdragon 8 gen 3": Chip("snapdragon-8-gen-3", "v75", "phone"),
    "samsung galaxy s25": Chip("snapdragon-8-elite", "v79", "phone"),
    "snapdragon 8 elite qrd": Chip("snapdragon-8-elite", "v79", "phone"),
    "dragonwing q-8750": Chip("snapdragon-8-elite", "v79", "phone"),
    "samsung galaxy s26": Chip("snapdragon-8-elite-gen-5", "v81", "phone"),
    "snapdragon 8 elite gen 5": Chip("snapdragon-8-elite-gen-5", "v81", "phone"),
    "snapdragon 8 elite gen 6": Chip("snapdragon-8-elite-gen-6", "v81", "phone"),
    "snapdragon 8 elite extreme gen 6": Chip("snapdragon-8-elite-extreme-gen-6", "v81", "phone"),
    "snapdragon x elite": Chip("snapdragon-x-elite", "v73", "laptop"),
    "snapdragon x plus": Chip("snapdragon-x-elite", "v73", "laptop"),
    "dragonwing iq-x7181": Chip("snapdragon-x-elite", "v73", "laptop"),
    "dragonwing iq-x5121": Chip("snapdragon-x-elite", "v73", "laptop"),
    "snapdragon x2 elite": Chip("snapdragon-x2-elite", "v81", "laptop"),
    "dragonwing iq-9075": Chip("qcs9075", "v73 car", "car"),
    "qcs9075": Chip("qcs9075", "v73 car", "car"),
    "sa8775p": Chip("sa8775p", "v73 car", "car"),
    "sa8255p": Chip("sa8775p", "v73 car", "car"),
    "sa8650p": Chip("sa8775p", "v73 car", "car"),
    "sa8295p": Chip("sa8295p", "v69", "car"),
    "sa7255p": Chip("sa7255p", "v73 small", "small"),
    "arduino ventuno q": Chip("qcs8275", "v73 car", "car"),
    "qcs8275": Chip("qcs8275", "v73 car", "car"),
    "dragonwing iq-8275": Chip("qcs8275", "v73 car", "car"),
    "snapdragon 7 gen 4": Chip("snapdragon-7-gen-4", "v73 small", "small"),
    "dragonwing q-7790": Chip("snapdragon-7-gen-4", "v73 small", "small"),
    "dragonwing q-6690": Chip("dragonwing-q-6690", "v73 smallest", "small"),
    "dragonwing rb3 gen 2": Chip("qcs6490", "v73 small", "small"),
    "qcs6490": Chip("qcs6490", "v73 small", "small"),
}


def chip_named(device: str) -> Chip:
    """The chip in a device of AI Hub's list; a chip of its own where the name is new."""
    low = device.lower()
    found = [known for known in CHIPS if known in low]
    return CHIPS[max(found, key=len)] if found else Chip(low, "unknown", "unknown")


@dataclass(frozen=True, slots=True)
class PartWork:
    """Multiply-adds of a part, in thousand millions, and its weights in millions."""

    gmacs: float
    mparams: float


TRANSFORMERS = (
    *("vit", "beit", "bert", "clip", "siglip", "owl", "detr", "dfine", "swin", "levit", "segformer", "depth_anything"),
    *(
        "sam",
        "video_mae",
        "jepa",
        "trocr",
        "whisper",
        "opus_mt",
        "diffusion",
        "controlnet",
        "groot",
        "pi05",
        "mask2former",
    ),
    *(
        "former",
        "cvt",
        "nomic",
        "minilm",
        "edgetam",
        "internvl",
        "intern3",
        "qwen",
        "t5",
        "gpt",
        "dino",
        "flux",
        "deit",
    ),
)
"""Words in the names of models built of attention."""
_WHISPER = {
    "tiny": (PartWork(21, 8), PartWork(0.05, 30)),
    "base": (PartWork(44, 20), PartWork(0.09, 52)),
    "small": (PartWork(172, 88), PartWork(0.25, 153)),
    "medium": (PartWork(568, 307), PartWork(0.7, 456)),
    "large_v3_turbo": (PartWork(1130, 637), PartWork(0.2, 172)),
}
# Counted from the architectures' papers at the input sizes that the runs state; attention's products included.
WORK: Mapping[str, PartWork] = {
    "vit": PartWork(17.6, 86.6),
    "opus_mt|encoder": PartWork(5, 49),
    "opus_mt|decoder": PartWork(0.1, 56),
    "beit": PartWork(17.6, 92),
    "albert_base_v2": PartWork(35.4, 11.7),
    "bert_base_uncased": PartWork(35.4, 110),
    "electra_bert_base_discrim": PartWork(35.4, 109),
    "distil_bert_base_uncased": PartWork(17.7, 66),
    "mobile_bert_uncased": PartWork(9.5, 24.6),
    "minilm_v2": PartWork(1.4, 22.7),
    "nomic_embed_text": PartWork(14.6, 137),
    "openai_clip": PartWork(20.5, 150),
    "siglip2|image_encoder": PartWork(17.6, 93),
    "siglip2|text_encoder": PartWork(5.5, 282),
    "owl_vit": PartWork(58, 153),
    "owlv2|vision": PartWork(550, 88),
    "owlv2|text": PartWork(5, 63),
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
    "depth_anything": PartWork(60, 25),
    "depth_anything_v2": PartWork(60, 25),
    "depth_anything_v3": PartWork(85, 35),
    "sam2|encoder": PartWork(105, 39),
    "sam2|decoder": PartWork(3.5, 6),
    "mobilesam|encoder": PartWork(38, 6),
    "mobilesam|decoder": PartWork(2, 4),
    "sam|encoder": PartWork(371, 90),
    "sam|decoder": PartWork(2, 4),
    "sam3|vision_backbone": PartWork(3000, 450),
    "video_mae": PartWork(180, 87),
    "vjepa2": PartWork(830, 304),
    "trocr|encoder": PartWork(15.5, 22),
    "trocr|decoder": PartWork(0.1, 39),
    "stable_diffusion_v1_5|text_encoder": PartWork(6.6, 123),
    "stable_diffusion_v1_5|unet": PartWork(340, 860),
    "stable_diffusion_v1_5|vae": PartWork(1240, 50),
    "stable_diffusion_v2_1|text_encoder": PartWork(23.5, 340),
    "stable_diffusion_v2_1|unet": PartWork(340, 866),
    "stable_diffusion_v2_1|vae": PartWork(1240, 50),
    "controlnet_canny|text_encoder": PartWork(6.6, 123),
    "controlnet_canny|unet": PartWork(340, 860),
    "controlnet_canny|vae": PartWork(1240, 50),
    "controlnet_canny|controlnet": PartWork(180, 361),
    "efficientformer": PartWork(1.3, 12.3),
    "mobile_vit": PartWork(1.9, 5.6),
    "cvt": PartWork(4.5, 20),
    "distil_whisper|encoder": PartWork(172, 88),
    "distil_whisper|decoder": PartWork(0.2, 78),
    **{f"whisper_{size}|encoder": each[0] for size, each in _WHISPER.items()},
    **{f"whisper_{size}|decoder": each[1] for size, each in _WHISPER.items()},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRun:
    """One part of a model, as it is compiled and where it runs."""

    model: str
    component: str
    precision: str
    device: str
    runtime: str
    unit: str = "NPU"
    layers: float | None = None  # of the compiled graph

    @property
    def bits(self) -> str:
        """What precisions have in common: floats, 16-bit integers' activations, 8-bit ones."""
        low = self.precision.lower()
        if low.startswith(("float", "fp", "mixed")):
            return "float"
        return "a16" if "a16" in low or low.startswith("w4") else "a8"

    @property
    def work(self) -> PartWork | None:
        """The part's work, where it is known."""
        return WORK.get(f"{self.architecture}|{self.component.lower()}") or WORK.get(self.architecture)

    @property
    def architecture(self) -> str:
        """The model without what says how it was stored or what it was trained on."""
        return "opus_mt" if self.model.startswith("opus_mt") else re.sub(r"_(quantized|hf|google)$", "", self.model)

    @property
    def base_s(self) -> float:
        """What the part's size alone says, on a usual chip in floats."""
        layers = self.layers or USUAL_LAYERS
        if self.work is None:
            return USUAL_S * math.sqrt(layers / USUAL_LAYERS)
        busy = math.hypot(self.work.gmacs / GMACS_A_SECOND, self.work.mparams / MPARAMS_A_SECOND)
        return busy + layers * LAYER_S

    @property
    def transformer(self) -> bool:
        """Whether the model is built of attention; its parts are known chip by chip."""
        return any(word in self.model for word in TRANSFORMERS)

    @property
    def part(self) -> str:
        """The part in its precision."""
        return f"{self.model}|{self.component}|{self.precision}"

    @property
    def place(self) -> str:
        """What the run's interval is measured on."""
        return f"{self.unit}|{self.bits}"


def part_law(run: PartRun) -> Law:
    """The seconds of a part as one product."""
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
    """How parts of another size differ from what their size says, and what of it is the chip's."""
    head = "counted" if run.work else "layers"
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
    """Those that ship."""
    return load(DATA)
