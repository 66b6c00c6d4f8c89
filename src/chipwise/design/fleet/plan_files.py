"""Writes, reads, resumes and compares plan files.

When a file is read, the type of every field and the range of every number are checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.fields import build, convert
from chipwise.core.files import check_output, read_mapping, write_output
from chipwise.core.record import Record
from chipwise.design.fleet.answer import FORMAT, FleetPlan, Option, planned
from chipwise.design.fleet.question import FleetQuestion, with_todays_names
from chipwise.errors import SpecError, short
from chipwise.predict.load.outcome import METRICS

FIGURES = ("in_flight", "busy", "reading", "preemptions")
"""Fields of a replay that are not times."""


def plan_question(
    question: FleetQuestion,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> FleetPlan:
    """Computes the plan for ``question``; stores its progress in the file ``out``, from which ``resume`` continues.

    Raises:
        SpecError: There is no file to resume, or it contains the plan for another question.
        Infeasible: No fleet meets the limits; the message says how close the closest fleet comes to each broken limit.
    """
    if out is None:
        if resume:
            raise SpecError("needs `out` too: the file from which to resume the plan", field="resume")
        return planned(question, on_progress=on_progress)
    check_output(out)
    found = planned(
        question,
        known=known_of(out, question) if resume else {},
        on_progress=on_progress,
        on_known=lambda held: write_progress(out, question, held),
    )
    found.save(out)
    return found


def write_progress(path: Path, question: FleetQuestion, known: Mapping[str, Mapping[str, float]]) -> None:
    """Writes an unfinished plan's question and replays to its file."""
    held = {"format": FORMAT, "answer": {"question": plain(question)}, "known": plain(known)}
    write_output(path, json.dumps(held, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Contents of a plan file: the question, the finished plan (None if it was interrupted), and the replays."""

    question: FleetQuestion
    plan: FleetPlan | None
    known: Mapping[str, Mapping[str, float]]


def read_plan(path: Path) -> PlanFile:
    """Reads a plan file.

    Raises:
        SpecError: The file is not a plan file, or a field is wrong; the message names the field.
    """
    try:
        held = read_mapping(path)
    except SpecError as error:
        raise _no_plan(path, f" ({error.message})") from None
    if held.get("format") != FORMAT or not isinstance(held.get("answer"), Mapping):
        raise _no_plan(path)
    try:
        known = _known(held.get("known"))
        answer = dict(Record.of(held["answer"]).data)
        answer.pop("headline", None)
        if isinstance(asked := answer.get("question"), Mapping):
            answer["question"] = with_todays_names(asked)
        question = build(FleetQuestion, answer.get("question"), field="answer.question")
        if "options" not in answer:
            return PlanFile(question=question, plan=None, known=known)
        plan = build(FleetPlan, answer, field="answer")
        if not plan.options:
            raise SpecError("a finished plan must have at least one option", field="answer.options")
        for i, option in enumerate(plan.options):
            _check_option(option, f"answer.options[{i}]")
    except SpecError as error:
        raise error.inside(file=str(path)) from None
    return PlanFile(question=question, plan=plan, known=known)


def _no_plan(path: Path, why: str = "") -> SpecError:
    return SpecError(f"is not a plan file{why}; chipwise plan ... --out FILE writes one", file=str(path))


def _known(data: object) -> dict[str, dict[str, float]]:
    """Checks the replays of a plan file; returns a mapping from each replay's key to its figures.

    Raises:
        SpecError: A replay lacks a number, or a number is below zero.
    """
    found: dict[str, dict[str, float]] = convert(dict[str, dict[str, float]], data, "known")
    for key, replay in found.items():
        where = f"known.{short(key, quoted=False)}"
        for name in (*FIGURES, "ttft_p99", "e2e_p99"):
            if name not in replay:
                raise SpecError("this field is missing", field=f"{where}.{name}")
        for name, value in replay.items():
            if name not in FIGURES and name.rpartition(":")[2] not in METRICS:
                raise SpecError("is not a field of a replay", field=f"{where}.{short(name, quoted=False)}")
            if value < 0:
                raise SpecError(f"must be at least 0, not {value:g}", field=f"{where}.{name}")
    return found


def _check_option(option: Option, field: str) -> None:
    """Checks the numbers of an option read from a file.

    Raises:
        SpecError: A number is out of range.
    """
    counts = {"replicas": option.replicas, "devices": option.devices, "tp": option.tp, "pp": option.pp,
              "ep": option.ep, "dp": option.dp}  # fmt: skip
    if option.second is not None:
        counts |= {"second.replicas": option.second.replicas, "second.devices": option.second.devices}
    for name, count in counts.items():
        if count < 1:
            raise SpecError(f"must be at least 1, not {count}", field=f"{field}.{name}")
    if not 0 <= option.chance <= 1:
        raise SpecError(f"must be from 0 to 1, not {option.chance:g}", field=f"{field}.chance")
    for name, price in (("usd_per_h", option.usd_per_h), ("saturation_per_s", option.saturation_per_s)):
        if price is not None and price < 0:
            raise SpecError(f"must be at least 0, not {price:g}", field=f"{field}.{name}")
    for group in ("times", "class_times"):
        for name, time in getattr(option, group).items():
            ends = (
                time.value if time.low is None else time.low,
                time.value,
                time.value if time.high is None else time.high,
            )
            if not 0 <= ends[0] <= ends[1] <= ends[2] or not all(map(math.isfinite, ends)):
                raise SpecError(
                    "must be a time of at least 0, within its 90 % interval", field=f"{field}.{group}.{name}"
                )


def known_of(path: Path, question: FleetQuestion) -> dict[str, dict[str, float]]:
    """The replays in the plan file ``path``, which must be for ``question``; empty if there is no such file.

    Raises:
        SpecError: The file is for another question, or is not a plan file.
    """
    if not path.exists():
        return {}
    held = read_plan(path)
    before, now = plain(held.question), plain(question)
    free = {"limits", "class_limits", "confidence", "prices", "most_devices", "power_w", "usd_per_s", "devices",
            "tp", "pp", "ep", "dp", "weights", "runtimes", "speculation", "fleets"}  # fmt: skip
    other = sorted(name for name in now if name not in free and before.get(name) != now[name])
    if other:
        raise SpecError(
            f"is a plan for another question ({', '.join(other)} differ); name another file", file=str(path)
        )
    return {key: dict(value) for key, value in held.known.items()}
