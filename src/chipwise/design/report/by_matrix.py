"""The format of each matrix, where a task has them chosen by time and loss: rows and sentences for page and card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section, table
from chipwise.design.report import words
from chipwise.design.report.record import RunRecord

TITLE: Final = "Precision matrix by matrix"
WHO: Final = (("winner", "winner"), ("baseline", "reference design"))


def known(record: RunRecord) -> Mapping[str, Any]:
    """Choices for winner (``winner``) and reference design (``baseline``): fields of a ``Selection``."""
    found = record.samples.get("by_matrix", {})
    return found if isinstance(found, Mapping) else {}


def note() -> str:
    """How the formats were chosen, and the meaning of the numbers."""
    return (
        "A matrix is narrow where the file's passes get faster by it, timed in turns, and validation "
        f"{words.task().metric.title} stays within a thousandth of FP32's. Time is the median of a pass on the "
        "processor's clock, measured in turns with FP32. Fused is what is predicted to be faster as one operator: "
        "projections of attention (qkv), a gate and what it gates (up), look-ups (tables). The file that was "
        "chosen was measured and ships."
    )


def head() -> tuple[str, ...]:
    """Heads of the columns of :func:`rows`."""
    title = words.task().metric.title
    return ("model", "formats", "fused", "time of a pass", "of FP32", f"validation {title}", "of FP32")


def rows(record: RunRecord) -> list[list[str]]:
    """Winner and reference design: chosen formats, time and quality, beside FP32."""
    shown = []
    for who, name in WHO:
        if (item := known(record).get(who)) is not None:
            chosen = str(item["weights"]) if item["kept"] else f"{item['weights']}, which broke a limit: not kept"
            times = [units.show(item[key], "time", digits=3) for key in ("seconds", "fp32_seconds")]
            quality = [_quality(item[key]) for key in ("loss", "fp32_loss")]
            shown.append([name, chosen, ", ".join(item["fused"]) or "nothing", *times, *quality])
    return shown


def _quality(loss: float) -> str:
    """As precise as a thousandth needs."""
    metric = words.task().metric
    return units.show(metric.shown(loss), metric.unit, digits=4)


def by_matrix(record: RunRecord) -> str:
    """The section: the choice, and the effect of each matrix on time and loss; empty if nothing was chosen."""
    if not known(record):
        return ""
    parts = [table(head(), [[safe(cell) for cell in row] for row in rows(record)])]
    for who, name in WHO:
        if (item := known(record).get(who)) is not None:
            tried = [
                [
                    safe(each["name"]),
                    safe(each["form"]),
                    f"{each['seconds_ratio']:.3f}",
                    "not judged: no faster" if each["loss"] is None else safe(_quality(each["loss"])),
                    "kept" if each["kept"] else "",
                ]
                for each in item["tried"]
            ]
            heads = (f"matrix of the {name}", "tried in", "times the time before", words.task().metric.title, "")
            parts.append(table(heads, tried))
    return section("by-matrix", TITLE, "".join(parts), safe(note()))
