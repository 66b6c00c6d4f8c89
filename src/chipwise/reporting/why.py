"""The page's sections on why: the answer explained, and other devices."""

from __future__ import annotations

from chipwise.page.markup import safe, section, table
from chipwise.reporting import explain, words
from chipwise.reporting.record import RunRecord


def explained(record: RunRecord) -> str:
    """The knee, growth, the price of each limit, importance."""
    answer = record.answer
    parts = [f"<p>{safe(explain.knee(record))}</p>"]
    if answer.growth:
        parts.append(f"<p>{safe(explain.growth(answer))}</p>")
    if answer.relaxed:
        rows = [[safe(cell) for cell in explain.relaxed(item)] for item in answer.relaxed]
        share = f"{answer.relaxed[0].share:.0%}"
        head = ("constraint", f"relaxing it by {share} would buy", "best expected", "by a design such as")
        parts.append(table(head, rows))
    if answer.importance:
        columns = ("choice", *[f"share of the variance of {words.label(name)}" for name in answer.importance])
        rows = [[safe(cell) for cell in row] for row in explain.importance(answer)]
        parts.append(table(columns, rows, numbers=set(range(1, len(columns)))))
    caption = (
        "What the quality model of this run expects; nothing of it was measured. Shares are total Sobol indices over "
        "the whole space; they add up to more than one where choices act together."
    )
    return section("explained", "Why this answer", "".join(parts), caption if answer.importance else "")


def elsewhere(record: RunRecord) -> str:
    """What is predicted on the run's other devices; nothing where there are none."""
    if not record.elsewhere:
        return ""
    head = ("device", *[safe(name) for name in explain.contenders(record)], "its own front (trials)")
    rows = [[safe(cell) for cell in explain.elsewhere(record, device)] for device in record.elsewhere]
    names = [device.device for device in record.elsewhere]
    carried = [
        [safe(device.title), *[_carried(device.carried.get(name), device.ranks.get(name)) for name in names]]
        for device in record.elsewhere
    ]
    transfer = table(("front of … on …", *[safe(device.title) for device in record.elsewhere]), carried)
    caption = (
        "Predicted from data sheets, not measured. Below: the share of a device's front that another's reaches there, "
        "and the rank correlation of what random candidates cost on the two."
    )
    return section("elsewhere", "On other devices", table(head, rows) + transfer, caption)


def _carried(share: float | None, rank: float | None) -> str:
    if share is None or rank is None:
        return words.UNKNOWN
    return f"{share:.0%} <small>τ {rank:.2f}</small>"
