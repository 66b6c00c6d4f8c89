"""What a model takes on a chip: one, many, all of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.core.errors import DoesNotFit, SpecError, Unsupported
from chipwise.cost.model import CostEstimate
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.serve.training import TrainingEstimate
from chipwise.spec import ArchSpec
from chipwise.spec.hf import resolve

if TYPE_CHECKING:
    from chipwise.explaining.comparison import Comparison


def estimate(
    model: str | Path | ArchSpec,
    *,
    device: str | Path | DeviceProfile = "h100-sxm",
    runtime: str = "vllm",
    prompt: int = 1024,
    new: int = 128,
    batch: int = 1,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
) -> CostEstimate:
    """Predicted cost of serving ``model`` on a device that need not be here, kernel by kernel.

    Args:
        model: A Hugging Face id that is bundled, a ``config.json`` or its folder, a spec file, or a spec.
        device: A data sheet's name, alias or file.
        runtime: Whose kernels, fusion and host overhead.
        prompt: Prompt tokens of a request.
        new: New tokens of a request.
        batch: Requests in flight, over all replicas.
        weights: Format of the matrices; that of the checkpoint, else bf16.
        kv: Format of the KV cache; that of the activations.
        tp: Devices that share every matrix.
        pp: Pipeline stages.
        ep: Groups that a mixture's experts are dealt out to.
        dp: Replicas of attention.

    Raises:
        UnknownName: A name that is not known; the nearest are offered.
        SpecError: A plan that does not divide the model.
        Unsupported: The device has no rate for a format.
        DoesNotFit: Too little memory; by how much, and what would fit.
    """
    from chipwise.serve.answer import answer
    from chipwise.serve.request import Request

    return answer(
        Request(
            model=model, device=device, runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp,
            batch=batch, prompt_tokens=prompt, new_tokens=new,
        )
    )  # fmt: skip


def estimate_training(
    model: str | Path | ArchSpec,
    *,
    device: str | Path | DeviceProfile = "h100-sxm",
    runtime: str = "torch-compile",
    tokens: int = 1024,
    batch: int = 1,
    microbatches: int = 1,
    checkpoint: bool = False,
    weights: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
) -> TrainingEstimate:
    """Predicted cost of one optimiser step: seconds, tokens per second, MFU, memory of the fullest device.

    Args:
        model: As in :func:`estimate`.
        device: A data sheet's name, alias or file.
        runtime: Whose kernels and fusion.
        tokens: Positions of each sequence.
        batch: Sequences of a step, over all replicas.
        microbatches: Parts that a replica's share is run in.
        checkpoint: Whether activations are recomputed.
        weights: The 16-bit format that is multiplied; what the device multiplies unless given.
        tp: Devices that share every matrix.
        pp: Pipeline stages.
        ep: Groups that a mixture's experts are dealt out to.
        dp: Replicas, which share the batch and sum gradients.

    Raises:
        UnknownName: A name that is not known.
        SpecError: A plan or batch that does not divide.
        Unsupported: The device has no rate for a format.
        DoesNotFit: Too little memory; by how much, and what would help.
    """
    from chipwise.serve.formats import wide_format
    from chipwise.serve.request import Request, resolved
    from chipwise.serve.training import training_step

    sheet = device if isinstance(device, DeviceProfile) else datasheet.load(str(device))
    weights = weights or wide_format(sheet)  # whatever the checkpoint is kept in
    asked = Request(model=model, device=sheet, runtime=runtime, weights=weights, tp=tp, pp=pp, ep=ep, dp=dp)
    found = resolved(asked)
    return training_step(
        found.setting, found.device, batch=batch, tokens=tokens, microbatches=microbatches, checkpoint=checkpoint
    )


@dataclass(frozen=True)
class DeviceAnswer:
    """A model on one device: its estimate, or why there is none."""

    device: str
    estimate: CostEstimate | None
    problem: str = ""


def estimate_devices(
    model: str | Path | ArchSpec, *, devices: Sequence[str] | None = None, **asked: Any
) -> list[DeviceAnswer]:
    """:func:`estimate` on each of ``devices`` (all that ship unless given), fastest first, then where it fails."""
    answers = []
    for name in devices or datasheet.names():
        try:
            answers.append(DeviceAnswer(name, estimate(model, device=name, **asked)))
        except (DoesNotFit, Unsupported) as error:
            answers.append(DeviceAnswer(name, None, str(error)))
    return sorted(answers, key=lambda each: _seconds(each.estimate) if each.estimate else float("inf"))


def _seconds(found: CostEstimate) -> float:
    """What a model is ranked by: the time of a token, or of a text encoder's pass."""
    return found.tpot_s if "tpot_p50" in found.metrics else found.ttft_s


def compare(models: Sequence[str], *, devices: Sequence[str] | None = None, **asked: Any) -> Comparison:
    """Models side by side on ``devices`` (all that ship unless given); other arguments are those of :func:`estimate`.

    Raises:
        UnknownName: A model or device that is not known.
        SpecError: No model, or a plan that does not divide one.
    """
    from chipwise.explaining.comparison import compare as compare_requests
    from chipwise.explaining.comparison import requests_of

    if not models:
        raise SpecError("name at least one model", field="models")
    for model in models:
        resolve(model)
    asked = {{"prompt": "prompt_tokens", "new": "new_tokens"}.get(name, name): value for name, value in asked.items()}
    return compare_requests(*requests_of(models, devices or datasheet.names(), **asked))


def estimate_table(
    path: str | Path, out: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> tuple[int, int]:
    """Answers every row of a CSV file; returns how many rows there are and how many have an error in their place.

    Raises:
        SpecError: The file is no table, or lacks the columns model and device.
        StorageError: ``out`` cannot be written.
    """
    from chipwise.serve.table import estimate_file

    return estimate_file(Path(path), Path(out), progress=progress)


def ops_table(path: str | Path, out: str | Path) -> tuple[int, int]:
    """Answers every row of a CSV file of single operators; returns how many rows there are and how many have an error.

    Raises:
        SpecError: The file is no table, or lacks the columns op and device.
        StorageError: ``out`` cannot be written.
    """
    from chipwise.predict.optable import ops_file

    return ops_file(Path(path), Path(out))
