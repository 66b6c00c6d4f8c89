"""Formats chosen matrix by matrix: rows and sentences for page and model card."""

from __future__ import annotations

from typing import Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section, text_table
from chipwise.core.record import Record
from chipwise.design.report.record import RunRecord

TITLE: Final = "Precision matrix by matrix"
WHO: Final = (("winner", "winner"), ("baseline", "reference design"))


def known(record: RunRecord) -> dict[str, Record]:
    """The stored ``Selection`` of the winner and of the reference design, by model."""
    held = Record(record.samples).record("by_matrix")
    return {name: held.record(who) for who, name in WHO if held.data.get(who) is not None}


def note(record: RunRecord) -> str:
    """Text on how the formats were chosen, and the meaning of the numbers."""
    return (
        "All matrices together, then each alone, are narrow if this makes the file's passes faster, timed in turns, "
        f"and if validation {record.words.metric.title} stays within a thousandth of FP32's. Time is the median of a "
        "pass on the processor's clock, measured in turns with FP32. Fused is what is predicted to be faster as one "
        "operator: projections of attention (qkv), a gate and what it gates (up), look-ups (tables). The file that was "
        "chosen was measured and ships."
    )


def head(record: RunRecord) -> tuple[str, ...]:
    """Headers of the columns of :func:`rows`."""
    title = record.words.metric.title
    return ("model", "formats", "fused", "time of a pass", "of FP32", f"validation {title}", "of FP32")


def rows(record: RunRecord) -> list[list[str]]:
    """Rows for winner and reference design: chosen formats, time and quality, and those of FP32."""
    shown = []
    for name, item in known(record).items():
        chosen = item.get("weights", str) + ("" if item.get("kept", bool) else ", which broke a limit: not kept")
        times = [units.show(item.get(key, float), "time", digits=3) for key in ("seconds", "fp32_seconds")]
        quality = [_quality(record, item.get(key, float)) for key in ("loss", "fp32_loss")]
        shown.append([name, chosen, ", ".join(item.sequence("fused", str)) or "nothing", *times, *quality])
    return shown


def _quality(record: RunRecord, loss: float) -> str:
    """A quality with enough digits to show a thousandth."""
    metric = record.words.metric
    return units.show(metric.shown(loss), metric.unit, digits=4)


def by_matrix(record: RunRecord) -> str:
    """The page's section: the chosen formats, and each matrix's effect on time and loss; empty if none was chosen."""
    if not known(record):
        return ""
    parts = [text_table(head(record), rows(record))]
    for name, item in known(record).items():
        tried = []
        for each in item.records("tried"):
            loss = each.get("loss", float, None)
            tried.append(
                [
                    each.get("name", str),
                    each.get("weight_format", str),
                    f"{each.get('seconds_ratio', float):.3f}",
                    "not evaluated: not faster" if loss is None else _quality(record, loss),
                    "kept" if each.get("kept", bool) else "",
                ]
            )
        heads = (f"matrix of the {name}", "tried in", "times the time before", record.words.metric.title, "")
        parts.append(text_table(heads, tried))
    return section("by-matrix", TITLE, "".join(parts), safe(note(record)))
