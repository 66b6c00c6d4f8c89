"""Builds the cases that rules read, from the names of models and devices that users write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chipwise.core.dtypes import format_name
from chipwise.core.files import read_json
from chipwise.errors import ChipwiseError, InputError, SpecError, Unsupported
from chipwise.hardware.device import MachineProfile
from chipwise.hardware.suited import OWN
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.sound.published import encoder_alone
from chipwise.model.published.read import resolve
from chipwise.model.walk.built import require_built
from chipwise.predict.explain.pricers import CalibratedPricer, DataSheetPricer
from chipwise.predict.explain.question import Case, CostQuestion, Pricer
from chipwise.predict.served.deployment import deployed
from chipwise.predict.served.estimate import cost_of, fitting_requests, waiting, with_defaults
from chipwise.predict.served.offload import remark
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.shortage import shortages

TASK = ("task", "checkpoint", "shared_tokens", "sensitivity")  # fields of a question that are not fields of a request


def read_sensitivity(given: str | Path | Sequence[float]) -> tuple[float, ...]:
    """Reads the loss that quantising each layer alone causes, from a list or a JSON file.

    Raises:
        SpecError: The value is not a list of numbers.
    """
    found = read_json(given) if isinstance(given, str | Path) else given
    if not isinstance(found, list | tuple) or not found or not all(isinstance(loss, int | float) for loss in found):
        file = str(given) if isinstance(given, str | Path) else None
        raise SpecError("must be a list of numbers, one for each layer", file=file, field="sensitivity")
    return tuple(float(loss) for loss in found)


def case_of(question: CostQuestion, pricer: Pricer) -> Case:
    """Returns the case of ``question``: the question with its predicted cost.

    Raises:
        ChipwiseError: The cost cannot be predicted; the message says why.
    """
    answer = pricer.price([question])[0]
    if isinstance(answer, ChipwiseError):
        raise answer
    return Case(question=question, estimate=answer, pricer=pricer)


def data_sheet_case(model: str | ArchSpec, device: str, **asked: Any) -> Case:
    """The case of a model on a chip with a data sheet. Default formats depend on the chip.

    Raises:
        UnknownName: A name is unknown.
        SpecError: A parallel degree does not divide the model.
        Unsupported: The chip has no rate for a format.
    """
    task = {name: asked.pop(name) for name in TASK if name in asked}
    request = Request(model=model, **deployed({**asked, "device": device}))
    found = resolved(request)
    setting, weights = found.setting, found.weights
    asked["runtime"] = setting.runtime
    formats = setting.formats
    asked_for = asked.pop("weights", None)
    asked.pop("kv", None)
    kv = formats.cache if formats.cache != formats.activations else None
    if task.get("task") == "train":
        if asked_for not in (None, OWN) and format_name(asked_for) != formats.activations:
            raise SpecError(f"must be bf16, fp16 or fp32 for training, not {asked_for}", field="weights")
        weights, kv = formats.activations, None
    served = deployed({**asked, "weights": weights or formats.weights, "kv": kv})
    question = CostQuestion(arch=setting.arch, **served, **task)
    fitting = question.batch if question.task == "train" or question.batch == 1 else _fitting(question, device)
    if not 0 < fitting < question.batch:
        case = case_of(question, DataSheetPricer(device=device))
        if question.task == "train":
            return case
        lacking = shortages([question.request(device)])[0]
        short = "" if lacking is None else lacking.line + remark(request)
        return replace(case, estimate=replace(with_defaults(case.estimate, request), does_not_fit=short))
    case = case_of(question.but(batch=fitting), DataSheetPricer(device=device))
    cost, held = with_defaults(case.estimate, request), waiting(fitting, question.batch)
    notes = (*cost.notes, f"{held}: times are for {fitting} requests at once")
    return replace(case, estimate=replace(cost, provenance=f"{cost.provenance}; {held}", notes=notes))


def _fitting(question: CostQuestion, device: str) -> int:
    """Number of requests that fit in memory at once. All other requests wait, as in :func:`chipwise.estimate`."""
    cost = cost_of(question.request(device))
    return int(fitting_requests(cost.group, cost.memory)[0])


def calibrated_case(model: str | ArchSpec, profile: MachineProfile, **asked: Any) -> Case:
    """The case of a model on this machine, in the runtime of ``profile``.

    Raises:
        InputError: More than one device is requested.
        Unsupported: The profile has no rates for one of the model's blocks or formats.
    """
    if any(asked.get(name, 1) != 1 for name in ("tp", "pp", "ep", "dp")):
        raise InputError("this machine is one device: --tp, --pp, --ep and --dp are for data sheets")
    whole = resolve(model) if isinstance(model, str) else model
    arch = priced_here(whole, images=asked.get("images", 0), audio_s=asked.pop("audio_s", 0))
    asked["weights"] = asked.get("weights") or "fp32"
    asked["runtime"] = profile.runtime
    question = CostQuestion(arch=arch, **deployed(asked))
    total = question.prompt_tokens + question.new_tokens
    if arch.context is not None and total > arch.context:
        raise InputError(
            f"{arch.name} has {arch.max_tokens} positions, but prompt and new tokens need {total}; ask for fewer tokens"
        )
    case = case_of(question, CalibratedPricer(profile=profile))
    if not whole.encoder_tokens:
        return case
    return replace(case, estimate=replace(case.estimate, notes=(*case.estimate.notes, ENCODER_ALONE)))


ENCODER_ALONE = "only the encoder is estimated: decoders with cross-attention can only be estimated from data sheets"


def priced_here(arch: ArchSpec, *, images: int = 0, audio_s: float = 0.0) -> ArchSpec:
    """The part of ``arch`` that can be predicted from calibration.

    For a speech-to-text encoder-decoder, this is the encoder. For other models, it is the model without its towers.

    Raises:
        Unsupported: The request adds images or sound to a decoder's prompt, or the model cannot be built; the message
            says what can be done instead.
    """
    if images or audio_s:
        raise Unsupported(
            "images or sound in a decoder's prompt can only be estimated from data sheets, not from this machine's "
            "calibration; name "
            "another --device, or time the model's parts here with chipwise measure"
        )
    arch = encoder_alone(arch).without_towers()
    try:
        require_built(arch, work="estimated on this machine", lowered=True)
    except Unsupported as error:
        raise Unsupported(f"{str(error).rpartition('; ')[0]}; use a data sheet: name another --device") from None
    return arch
