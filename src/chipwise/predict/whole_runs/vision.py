"""Vision transformers: the work of a forward pass over a batch of images, and the time of this pass in PyTorch.

A plain vision transformer cuts the image into patches, multiplies each patch by one matrix, puts prefix tokens before
the patches (a class token, registers), and applies a stack of ordinary encoder layers. Its time is a sum of matrix
products, attention, activation traffic and a cost per kernel, at rates fitted to published runs
(``predict/whole_runs/sums.py``). Other image models are predicted only from their multiply-adds and activations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from chipwise.errors import SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.question.question import image_of
from chipwise.predict.cost.model import Predicted
from chipwise.predict.whole_runs.sums import Amount, Constants, Law, load, named, value_of

DATA = Path(__file__).parents[1] / "data" / "vision.json"
LAYER_KERNELS = 12  # two norms, four matrix products, attention, activation, two sums, two scales or casts
CHANNELS = 3
FLOPS_A_JOULE = 0.8e12  # 16-bit FLOPs per joule at the power limit, about what an H100 sustains at 700 W
BYTES = {"fp32": 4, "tf32": 4}  # bytes per value; otherwise 2
AMP = {"amp": "fp16", "amp_bf16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformer:
    """A plain vision transformer, described by the sizes that papers and timm state.

    Raises:
        SpecError: A size is not above zero, or the patch does not fit in the image.
    """

    image_size: int
    patch: int
    width: int
    depth: int
    heads: int
    mlp_hidden: int
    gated: bool = False
    prefix_tokens: int = 1
    classes: int = 1000

    def __post_init__(self) -> None:
        for field in ("image_size", "patch", "width", "depth", "heads", "mlp_hidden"):
            if getattr(self, field) < 1:
                raise SpecError(f"must be above zero, not {getattr(self, field)}", field=field)
        if self.patch > self.image_size:
            raise SpecError(f"must be at most the image's {self.image_size} pixels, not {self.patch}", field="patch")

    @property
    def patches(self) -> int:
        """Number of patches of one image."""
        return (self.image_size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Number of positions of one image, including prefix tokens."""
        return self.patches + self.prefix_tokens

    @property
    def parameters(self) -> int:
        """Number of parameters, with biases, learned positions and two norms per layer (Dosovitskiy et al. 2021)."""
        width, hidden = self.width, self.mlp_hidden
        up = 2 if self.gated else 1
        attention = 4 * width * width + 4 * width
        mlp = up * (width * hidden + hidden) + hidden * width + width
        stem = CHANNELS * self.patch**2 * width + width
        positions = (self.tokens + self.prefix_tokens) * width
        head = width * self.classes + self.classes
        return stem + positions + self.depth * (attention + mlp + 4 * width) + 2 * width + head

    @property
    def product_flops(self) -> float:
        """FLOPs per image of matrix products with weights; a multiply-add counts as two FLOPs."""
        mlp = (3 if self.gated else 2) * self.width * self.mlp_hidden
        layers = self.tokens * self.depth * (4 * self.width**2 + mlp)
        stem = self.patches * CHANNELS * self.patch**2 * self.width
        return 2.0 * (layers + stem + self.width * self.classes)

    @property
    def attention_flops(self) -> float:
        """FLOPs per image of attention's scores and values."""
        return 4.0 * self.depth * self.tokens**2 * self.width

    @property
    def activations(self) -> float:
        """Number of values that kernels write per image, without the scores of fused attention."""
        each = 9 * self.width + (3 if self.gated else 2) * self.mlp_hidden
        return float(self.depth * self.tokens * each + self.tokens * self.width)

    @property
    def kernels(self) -> float:
        """Approximate number of kernels per pass."""
        return float(LAYER_KERNELS * self.depth + 8)


def plain(arch: ArchSpec) -> VisionTransformer | None:
    """Converts ``arch`` to a plain vision transformer; None if it is not one.

    In a plain vision transformer, all layers are equal, attention is global, and blocks contain no norms of their own.
    """
    if not arch.image_tokens:
        return None
    first, stem = arch.layers[0], image_of(arch.stem)
    attention, ffn = first.attention, first.ffn
    alike = stem.axes == 2 and not stem.convs and all(layer == first for layer in arch.layers)
    if not alike or not isinstance(attention, Attention) or not isinstance(ffn, FeedForward):
        return None
    if attention.square is not None or attention.query_width != arch.d_model:
        return None
    if attention.patch_rope or attention.sub_norm or ffn.sub_norm or arch.crosses:  # no published run has these kernels
        return None
    return VisionTransformer(
        image_size=stem.image_size,
        patch=stem.patch,
        width=arch.d_model,
        depth=len(arch.layers),
        heads=attention.heads,
        mlp_hidden=ffn.width,
        gated=ffn.gated,
        prefix_tokens=stem.prefix_tokens,
        classes=arch.outputs or arch.head.projection,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a run was set up: device, PyTorch mode (eager, compiled), number format, image layout, PyTorch version."""

    device: DeviceProfile
    runtime: str = "pytorch compiled"
    dtype: str = "amp"
    layout: str = "nchw"
    version: str = "2.9"

    @property
    def place(self) -> str:
        """The device and the runtime, as the key of intervals."""
        return f"{self.device.name}|{self.runtime}"

    @property
    def levels(self) -> tuple[str, ...]:
        """Properties that other runs may share, such as the device; fitted rates have a deviation for each property."""
        device, kind = self.device, "cpu" if self.device.kind == "cpu" else "gpu"
        own, style = f"{kind}|{self.runtime}", f"{self.dtype}|{self.layout}"
        return (
            kind,
            own,
            device.name,
            f"{device.name}|{self.runtime}",
            f"{own}|{style}",
            f"{own}|{style}|{self.version}",
            f"{device.name}|{self.runtime}|{style}|{self.version}",
        )

    @property
    def value_bytes(self) -> int:
        """Bytes per activation value."""
        return BYTES.get(self.dtype, 2)

    @property
    def peak_flops_per_s(self) -> float:
        """Dense rate in the number format of the matrix products, capped at what the board's power allows.

        Raises:
            Unsupported: The sheet has no rate for this number format.
        """
        rate, power = self.device.rate(AMP.get(self.dtype, self.dtype), "fp16", "bf16", "fp32"), self.device.board_power
        if rate is None:
            raise Unsupported(f"{self.device.name} lists no rate for {self.dtype} products")
        return rate if power is None else min(rate, FLOPS_A_JOULE * power.number)


def plain_law(model: VisionTransformer, setup: Setup, batch: int) -> Law:
    """The amounts of work of a pass over ``batch`` images; ``whole_runs/sums.py`` predicts its seconds from them.

    Raises:
        Unsupported: The device lists no rate for matrix products in this number format.
    """
    peak, bandwidth = setup.peak_flops_per_s, setup.device.mem_bandwidth_bytes_per_s
    head = model.width / max(model.heads, 1)
    attention = "attention.small" if head < 64 else "attention"
    moved = setup.value_bytes * batch * model.activations
    weights = setup.value_bytes * model.parameters
    return (
        Amount(batch * model.product_flops / peak, 0, named("products", setup.levels)),
        Amount(batch * model.attention_flops / peak, 1, named(attention, setup.levels)),
        Amount((moved + weights) / bandwidth, 2, named("activations", setup.levels)),
        Amount(model.kernels, 3, named("kernel", setup.levels)),
        Amount(1.0, 4, named("pass", setup.levels)),
    )


@functools.cache
def constants() -> Constants:
    """The bundled constants."""
    return load(DATA)


def step_s(model: VisionTransformer, setup: Setup, *, batch: int = 1, fold: str | None = None) -> Predicted:
    """Seconds of a pass over ``batch`` images, with its 90 % interval.

    Raises:
        Unsupported: The device lists no rate for matrix products in this number format.
    """
    held = constants()
    situation = held.situation(device=setup.device.name, vendor=setup.device.vendor, place=setup.place, model="")
    middle = float(value_of(plain_law(model, setup, batch), held.terms(fold)))
    return Predicted.around(middle, held.halfwidth(situation, setup.place))
