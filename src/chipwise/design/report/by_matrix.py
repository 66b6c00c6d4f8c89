"""Texts and table rows about formats that were chosen for each matrix, for the report page and the model card."""

from __future__ import annotations

from typing import Final

from chipwise.core import units
from chipwise.core.page.markup import safe, section, text_table
from chipwise.core.record import Record
from chipwise.design.report.record import RunRecord

TITLE: Final = "Precision matrix by matrix"
WHO: Final = (("winner", "winner"), ("baseline", "reference design"))


def known(record: RunRecord) -> dict[str, Record]:
    """Maps ``winner`` and ``reference design`` to the stored ``Selection`` of each; leaves out those without one."""
    held = Record(record.samples).record("by_matrix")
    return {name: held.record(who) for who, name in WHO if held.data.get(who) is not None}


def note(record: RunRecord) -> str:
    """A paragraph that explains how the formats were chosen and what the numbers mean."""
    return (
        "Narrow formats were tried for all matrices together, then for each. They are used if forward passes become "
        f"faster and if validation {record.words.metric.title} is worse than FP32's by at most a thousandth. Times are "
        "medians of a forward pass in processor time, measured alternately with FP32. “Fused” lists parts predicted to "
        "be faster if each is computed as one operator: projections of attention (qkv), a gate and what it gates (up), "
        "look-ups (tables). The chosen file was measured and is the one that ships."
    )


def head(record: RunRecord) -> tuple[str, ...]:
    """Column headers for :func:`rows`."""
    title = record.words.metric.title
    return ("model", "formats", "fused", "time of a forward pass", "of FP32", f"validation {title}", "of FP32")


def rows(record: RunRecord) -> list[list[str]]:
    """Rows for winner and reference design: chosen formats, and time and quality next to those of FP32."""
    shown = []
    for name, item in known(record).items():
        chosen = item.get("weights", str) + ("" if item.get("kept", bool) else " (not used: a limit was exceeded)")
        times = [units.show(item.get(key, float), "time", digits=3) for key in ("seconds", "fp32_seconds")]
        quality = [_quality(record, item.get(key, float)) for key in ("loss", "fp32_loss")]
        shown.append([name, chosen, ", ".join(item.sequence("fused", str)) or "nothing", *times, *quality])
    return shown


def _quality(record: RunRecord, loss: float) -> str:
    """The loss in the task's metric, with enough digits to show a difference of a thousandth."""
    metric = record.words.metric
    return units.show(metric.shown(loss), metric.unit, digits=4)


def by_matrix(record: RunRecord) -> str:
    """The page's section on the chosen formats and each matrix's effect on time and loss; empty without them."""
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
        heads = (f"matrix of the {name}", "tried in", "time relative to the best so far", record.words.metric.title, "")
        parts.append(text_table(heads, tried))
    return section("by-matrix", TITLE, "".join(parts), safe(note(record)))
