"""Plans as files: written, read, resumed, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.errors import SpecError
from chipwise.core.files import read_text, write_atomic
from chipwise.planning.answer import Plan
from chipwise.planning.question import Question, question_from

FORMAT = "chipwise plan 1"


def write_plan(plan: Plan, path: Path) -> None:
    """Writes ``plan`` with its question and its replays.

    Raises:
        StorageError: The file cannot be written.
    """
    held = {"format": FORMAT, "answer": plan.to_dict(), "known": plain(plan.known)}
    write_atomic(path, json.dumps(held, indent=1, allow_nan=False) + "\n")


def write_progress(path: Path, question: Question, known: Mapping[str, Mapping[str, float]]) -> None:
    """Writes what is known of an unfinished plan."""
    held = {"format": FORMAT, "answer": {"question": plain(question)}, "known": plain(known)}
    write_atomic(path, json.dumps(held, indent=1, allow_nan=False) + "\n")


def read_plan(path: Path) -> dict[str, Any]:
    """What a plan's file holds: ``answer`` and ``known``.

    Raises:
        SpecError: It is no plan's file.
    """
    try:
        held = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError):
        held = None
    if not isinstance(held, dict) or held.get("format") != FORMAT or not isinstance(held.get("answer"), dict):
        raise SpecError("is not a plan's file; chipwise plan ... --out FILE writes one", file=str(path))
    return held


def known_of(path: Path, question: Question) -> dict[str, dict[str, float]]:
    """The replays that the plan in ``path`` has made of the same question; none where there is no such file.

    Raises:
        SpecError: The file is of another question, or no plan's.
    """
    if not path.exists():
        return {}
    held = read_plan(path)
    before = dict(held["answer"].get("question", {}).items())
    now = json.loads(json.dumps(plain(question)))
    free = {"limits", "class_limits", "confidence", "prices", "most_devices", "power_w", "usd_per_s", "devices",
            "degrees", "stages", "weights", "runtimes", "experts", "copies", "speculation", "fleets"}  # fmt: skip
    other = sorted(name for name in now if name not in free and before.get(name) != now[name])
    if other:
        raise SpecError(f"is a plan of another question ({', '.join(other)}); name another file", file=str(path))
    return {
        str(key): {str(name): float(number) for name, number in value.items()} for key, value in held["known"].items()
    }


def question_of(path: Path) -> Question:
    """The question of the plan in ``path``.

    Raises:
        SpecError: It is no plan's file.
    """
    return question_from(read_plan(path)["answer"]["question"], file=str(path))


def differences(first: Path, second: Path) -> list[tuple[str, str, str]]:
    """What differs between two plans: name, before, after; questions first, then the answers' best options.

    Raises:
        SpecError: One is no plan's file.
    """
    before, after = (read_plan(path)["answer"] for path in (first, second))
    rows = []
    questions = (before.get("question", {}), after.get("question", {}))
    for name in sorted({*questions[0], *questions[1]}):
        old, new = (each.get(name) for each in questions)
        if old != new:
            rows.append((f"question.{name}", _shown(old), _shown(new)))
    options = [(each.get("options") or [{}])[0] for each in (before, after)]
    for name in ("device", "runtime", "weights", "tp", "pp", "ep", "dp", "speculation", "replicas", "devices", "kind",
                 "second", "usd_per_h", "chance",
                 "saturation_per_s", "bottleneck", "joules_per_output_token"):  # fmt: skip
        old, new = (each.get(name) for each in options)
        if old != new:
            rows.append((name, _shown(old), _shown(new)))
    times = [each.get("times", {}) for each in options]
    for name in sorted({*times[0], *times[1]}):
        values = [each.get(name, {}).get("value") for each in times]
        if values[0] != values[1]:
            rows.append((name, *("–" if value is None else units.show(value, "time") for value in values)))
    return rows


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return (
        units.number(value)
        if isinstance(value, float)
        else json.dumps(value)
        if isinstance(value, dict | list)
        else str(value)
    )
