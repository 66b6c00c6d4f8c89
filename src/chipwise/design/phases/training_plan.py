"""Plans the training of a design that was chosen without training: tokens, recipe, time, price, expected loss.

The recipe is that of ``chipwise train``, whose learning rates are inversely proportional to the square root of the
width. They were tuned for widths from 64 to 256 (docs/notes/training.md), so rates for wider models are extrapolated,
not tuned. The hours follow from the estimate of one training step, and the loss from the law; both have an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from chipwise.core import units
from chipwise.core.files import write_atomic, write_json
from chipwise.core.results import Result
from chipwise.errors import DoesNotFit, MissingExtra, SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.text.form import DECODER
from chipwise.predict.cost.model import Predicted, combined
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.formats import wide_format
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.training_step import TrainingEstimate, training_step
from chipwise.training.laws.laws import ExpectedQuality, Law, published_quality

TOKENS_PER_PARAMETER = 20.0  # compute-optimal: Hoffmann et al. 2022, table 3
STEP_TOKENS = 2**19  # tokens per optimiser step
MOST_LOCAL = 64  # most sequences per device
MOST_IN_NODE = 8  # most devices per server
TUNED_WIDTHS = (64, 256)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingPlan(Result):
    """A plan for training one design on ``devices`` devices of one kind."""

    tokens: float
    steps: int
    window_tokens: int
    batch: int  # sequences that a device runs at once
    accumulate: int  # batches of each device in one optimiser step
    recompute: bool  # whether activations are recomputed
    matrix_rate: float  # learning rate of the layers' matrices (Muon)
    table_rate: float  # learning rate of tables, head and norms (AdamW)
    warmup_steps: int
    decay_share: float  # share of the steps, at the end, in which the learning rate decays
    weight_decay: float
    device: str
    devices: int
    step: Predicted  # seconds of an optimiser step
    mfu: float
    memory_bytes: float  # on the device that needs the most
    device_hours: Predicted
    usd: Predicted | None  # None if the data sheet states no price
    loss: ExpectedQuality
    notes: tuple[str, ...] = ()

    def headline(self) -> str:
        """The plan in one line: tokens, hours, price and expected loss."""
        days = self.device_hours.value / self.devices / 24
        price = "price unknown" if self.usd is None else f"${self.usd.value:,.0f}"
        return (
            f"{units.show(self.tokens, 'count')} tokens on {self.devices} x {self.device}: "
            f"{self.device_hours.value:,.0f} device hours ({days:.1f} days), {price}; {self.loss}"
        )

    def rows(self) -> list[dict[str, object]]:
        """The plan as table rows: one per quantity, with an interval if the quantity is predicted."""
        found: list[tuple[str, Predicted | None]] = [
            ("step_s", self.step), ("device_hours", self.device_hours), ("usd", self.usd), ("loss", self.loss.loss),
        ]  # fmt: skip
        return [
            {"what": what, "value": value and value.value, "low": value and value.low, "high": value and value.high}
            for what, value in found
        ]


def training_plan(
    design: Design | ArchSpec,
    *,
    device: str | DeviceProfile = "h100-sxm",
    devices: int = 8,
    tokens: float | None = None,
    step_tokens: int = STEP_TOKENS,
    window_tokens: int | None = None,
    law: Law | None = None,
) -> TrainingPlan:
    """Plans the training of ``design`` with the largest batch that fits; recomputes activations only if needed.

    Args:
        design: The design to train.
        device: A data sheet, or its name.
        devices: Number of devices, which share each batch.
        tokens: Training tokens, in one pass over the text. Default: twenty per parameter.
        step_tokens: Tokens of an optimiser step over all devices; rounded to a multiple of ``devices`` x
            ``window_tokens``.
        window_tokens: Tokens of a sequence. Default: the model's maximum, but at most 2,048.
        law: Law of the loss. Default: the bundled one.

    Raises:
        SpecError: A number is not positive.
        DoesNotFit: One sequence does not fit in the device's memory even with recomputed activations.
        Unsupported: The law or the device does not cover the model.
        InputError: The model is too small for the law, or the text is too short.
    """
    arch = design.arch if isinstance(design, Design) else design
    sheet = device if isinstance(device, DeviceProfile) else datasheet.load(device)
    window = min(arch.max_tokens, 2048) if window_tokens is None else window_tokens
    wanted = TOKENS_PER_PARAMETER * arch.active_parameters() if tokens is None else float(tokens)
    for name, value in (
        ("devices", devices),
        ("step_tokens", step_tokens),
        ("tokens", wanted),
        ("window_tokens", window),
    ):
        if not 0 < value < math.inf:
            raise SpecError(f"must be positive, not {value}", field=name)
    expected = published_quality(arch, tokens=wanted, law=law)
    share = max(1, round(step_tokens / (devices * window)))  # sequences per device and step
    local, recompute, found = _largest(arch, sheet, devices=devices, window=window, share=share)
    accumulate = share // local
    seconds = found.step
    steps = math.ceil(wanted / (devices * window * local * accumulate))
    hours = combined(lambda step_s: step_s * (steps * devices / 3600), seconds)
    usd = None if sheet.price is None else combined(lambda each_h: each_h * (3600 * sheet.price_usd_per_s), hours)
    try:
        from chipwise.training.data.recipe import Recipe
    except ModuleNotFoundError:
        raise MissingExtra("torch", "search") from None
    recipe = Recipe()
    rates = recipe.rates(arch.d_model)
    return TrainingPlan(
        tokens=wanted, steps=steps, window_tokens=window, batch=local, accumulate=accumulate, recompute=recompute,
        matrix_rate=rates[0], table_rate=rates[1], warmup_steps=recipe.warmup_steps, decay_share=recipe.decay_share,
        weight_decay=recipe.weight_decay, device=sheet.name, devices=devices, step=seconds, mfu=found.mfu,
        memory_bytes=found.peak_memory_bytes, device_hours=hours, usd=usd, loss=expected,
        notes=tuple(_notes(arch, steps, usd, built=DECODER.builds(arch))),
    )  # fmt: skip


def write_training_plan(design: Design | ArchSpec, folder: str | Path, plan: TrainingPlan) -> tuple[Path, ...]:
    """Writes ``training.json``, ``model.json`` and ``train.sh`` into ``folder``; returns their paths.

    The script expects text files or a text source in the environment variable ``DATA``.

    Args:
        design: The design to train.
        folder: The folder; created if it is missing.
        plan: The plan of its training.

    Raises:
        StorageError: The files cannot be written.
    """
    arch = design.arch if isinstance(design, Design) else design
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = tuple(target / name for name in ("training.json", "model.json", "train.sh"))
    write_json(paths[0], plan.to_dict())
    io.save(arch, paths[1])
    write_atomic(paths[2], _script(plan, built=DECODER.builds(arch)))
    paths[2].chmod(0o755)
    return paths


def _largest(
    arch: ArchSpec, sheet: DeviceProfile, *, devices: int, window: int, share: int
) -> tuple[int, bool, TrainingEstimate]:
    """Largest batch that fits (a divisor of ``share``), whether it needs recomputation, and the step's estimate."""
    weights = wide_format(sheet)
    request = resolved(
        Request(model=arch, deployment=Deployment(device=sheet, runtime="torch-compile", weights=weights, dp=devices))
    )
    counts = [count for count in range(min(share, MOST_LOCAL), 0, -1) if share % count == 0]
    for recompute in (False, True):
        for count in counts:
            try:
                return count, recompute, training_step(
                    request.setting, request.device, batch=share * devices, tokens=window,
                    microbatches=share // count, checkpoint=recompute,
                )  # fmt: skip
            except DoesNotFit as error:
                problem = error
    raise problem


def _notes(arch: ArchSpec, steps: int, usd: Predicted | None, *, built: bool) -> list[str]:
    found = []
    if not TUNED_WIDTHS[0] <= arch.d_model <= TUNED_WIDTHS[1]:
        found.append(
            f"learning rates for width {arch.d_model} are extrapolated from widths {TUNED_WIDTHS[0]} to "
            f"{TUNED_WIDTHS[1]}: first try --rate 0.5, 1 and 2 on a hundredth of the tokens"
        )
    if usd is None:
        found.append("the data sheet states no price; add price and its source to the data sheet")
    if not built:
        found.append("chipwise cannot build this model: train.sh lists what another trainer needs")
    if steps < 1_000:
        found.append(f"{steps} steps are few; fewer tokens per step (step_tokens) use the text better")
    return found


def _script(plan: TrainingPlan, *, built: bool) -> str:
    head = f"#!/usr/bin/env bash\n# {plan.headline()}\n"
    head += "".join(f"# {note}\n" for note in (*plan.notes, *plan.loss.notes))
    if not built:
        sequences = f"{plan.devices} x {plan.batch} x {plan.accumulate} sequences of {plan.window_tokens} tokens"
        return head + (
            "# model.json describes the model. Train it elsewhere with these settings, then measure what it exports:\n"
            f"#   {plan.tokens:.4g} tokens, {plan.steps} steps of {sequences}\n"
            f"#   Muon {plan.matrix_rate:.3g} for the layers' matrices, AdamW {plan.table_rate:.3g} for all others,\n"
            f"#   weight decay {plan.weight_decay:g}, {plan.warmup_steps} steps of warm-up; in the last "
            f"{units.show(plan.decay_share, 'share')} of the steps, the rates fall to zero\n"
            'echo "chipwise builds no model of this kind; see the comments of this script" >&2\nexit 1\n'
        )
    source = 'DATA="${DATA:?name text files or a text source, such as DATA=corpus/*.txt}"\n'
    source, launch = source + _nodes(plan.devices), _launch(plan.devices)
    options = [
        f'--data "$DATA" --tokens {round(plan.tokens)} --batch {plan.batch} --window {plan.window_tokens}',
        f"--accumulate {plan.accumulate} --device cuda --precision bf16 --out trained --resume",
    ]
    if plan.recompute:
        options.append("--checkpoint-activations")
    return (
        f'{head}set -euo pipefail\ncd "$(dirname "$0")"\n{source}'
        f"RESUME=$([ -d trained ] && echo --resume || true)\n"
        f"{launch} train model.json {' '.join(options).replace(' --resume', ' $RESUME')}\n"
    )


def _per_node(devices: int) -> int:
    """Devices per machine: the largest divisor of ``devices`` up to eight."""
    return max(count for count in range(1, MOST_IN_NODE + 1) if devices % count == 0)


def _nodes(devices: int) -> str:
    """Launch settings for devices in several machines; empty for one machine."""
    nodes = devices // _per_node(devices)
    if nodes == 1:
        return ""
    return f'HEAD="${{HEAD:?run this on each of {nodes} machines, with HEAD=name of the first}}"\n'


def _launch(devices: int) -> str:
    local = _per_node(devices)
    if devices == 1:
        return "chipwise"
    if devices == local:
        return f"torchrun --nproc-per-node {local} -m chipwise"
    meet = '--rdzv-backend c10d --rdzv-id chipwise --rdzv-endpoint "$HEAD:29500"'
    return f"torchrun --nnodes {devices // local} --nproc-per-node {local} {meet} -m chipwise"
