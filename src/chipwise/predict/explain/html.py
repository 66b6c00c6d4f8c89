"""The explanation as an HTML page: verdict, waterfalls, roofline, curves and advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

from chipwise.core import units
from chipwise.core.page.document import document
from chipwise.core.page.figures import Figure
from chipwise.core.page.markup import safe, section, table
from chipwise.predict.explain.advice import Advice
from chipwise.predict.explain.explanation import Explanation, PhaseAnswer
from chipwise.predict.explain.plots import roofline_figure
from chipwise.predict.explain.wording import factor_text, gain_text, side_effects

MEMORY = "Memory"
ROOFLINE = '<div class="plot" id="plot-roofline" style="min-height:520px"></div>'
_METRICS = {"prefill": "ttft_p50", "decode": "tpot_p50"}
_LABELS = {"prefill": "TTFT", "decode": "TPOT"}
_TITLES = {"prefill": "Where a prompt's pass goes", "decode": "Where a token's time goes"}


def page(model: str, found: Explanation) -> str:
    """The explanation as one self-contained HTML document.

    Raises:
        MissingExtra: plotly is not installed.
    """
    figures: dict[str, list[Figure]] = {}
    sections = [_waterfall(found, phase, f"waterfall-{phase.phase}") for phase in found.phases]
    if found.case.sheet is not None:
        figures["roofline"] = [roofline_figure(found.case.sheet, found.phases)]
        caption = (
            "Each point is an operator at its predicted speed; a larger point takes more of its phase. Sloped lines "
            "are the bandwidths of memory levels, and flat lines are dense peaks, all from the data sheet."
        )
        sections.append(section("roofline", "Roofline", ROOFLINE, caption))
    sections += [_memory(found), _advice(found.advice), _notes(found)]
    return document(f"{model} · chipwise", f"{_head(model, found)}\n{''.join(sections)}{_foot()}", figures=figures)


def _head(model: str, found: Explanation) -> str:
    cost, question = found.estimate, found.case.question
    several = f"{cost.devices} × " if cost.devices > 1 else ""
    verdicts = "".join(f'<p class="verdict">{safe(phase.verdict.capitalize())}.</p>' for phase in found.phases)
    served = replace(cost, weights=question.weights).served_as
    where = f"{several}{cost.device} · {served} · {cost.provenance}"
    tiles = "".join(
        f'<div class="tile{" broken" if found.does_not_fit and label == MEMORY else ""}">'
        f'<div class="label">{safe(label)}</div><div class="value">{safe(value)}</div>'
        f'<div class="from">{safe(of)}</div></div>'
        for label, value, of in _tiles(found)
    )
    short = (
        found.does_not_fit
        and f"{found.does_not_fit[0].upper()}{found.does_not_fit[1:]}. All times are as if it fitted."
    )
    banner = f'<p class="short">{safe(short)}</p>' if short else ""
    return (
        f'<header><div class="brand">chipwise</div><h1>{safe(model)}</h1>'
        f'<div class="muted">{safe(where)} · {safe(found.case.asked)}</div></header>'
        f'<div class="answer">{banner}<h2>What bounds it</h2><div class="tiles">{tiles}</div>{verdicts}</div>'
    )


def _tiles(found: Explanation) -> Iterator[tuple[str, str, str]]:
    """The label, the value and a remark for each tile at the top of the page."""
    for phase in found.phases:
        used = [
            f"{name} {units.show(value, 'share', digits=2)}"
            for name, value in (("MFU", phase.mfu), ("MBU", phase.mbu))
            if value
        ]
        label = _LABELS[phase.phase] if found.case.generates else found.case.title(phase.phase).capitalize()
        known = found.estimate.metrics.get("step" if found.case.training else _METRICS[phase.phase])
        within = [units.interval(known.value, known.low, known.high, "time")] if known else []
        within = ["no validated interval" if text == "–" else text for text in within]
        yield label, units.show(phase.seconds, "time"), " · ".join([*within, *used])
        rate = found.estimate.metrics.get("decode_tokens_per_s")
        if phase.phase == "decode" and rate is not None:
            yield "Decode, each request", units.show(rate.value, "rate"), "1 / TPOT"
    of = f"of {units.show(found.capacity_bytes, 'bytes')}" if found.capacity_bytes else ""
    yield MEMORY, units.show(found.estimate.peak_memory_bytes, "bytes"), of
    for curve in found.saturation:
        if curve.saturation is not None:
            yield f"Saturation in {curve.unit}", units.number(curve.saturation), "below it, more work costs little time"


def _waterfall(found: Explanation, phase: PhaseAnswer, key: str) -> str:
    title = _TITLES[phase.phase] if found.case.generates else f"Where {found.case.title(phase.phase)} goes"
    caption = "The parts lead from the chip's limits to the predicted time, which is their sum."
    rows = [
        [
            safe(each.place) + (f" <small>×{each.count}</small>" if each.count > 1 else ""),
            safe(units.show(each.seconds, "time")),
            safe(units.show(each.share, "share")),
            safe(each.bound.value),
            "" if each.intensity is None else units.number(each.intensity),
            "" if each.ridge is None else units.number(each.ridge),
            "" if each.reached is None else safe(units.show(each.reached, "share")),
        ]
        for each in phase.operators
    ]
    head = ("operator", "time", "share", "bound", "FLOPs/byte", "ridge", "of its limit")
    operators = f"<details><summary>All operators</summary>{table(head, rows, {1, 2, 4, 5, 6})}</details>"
    return section(key, title, _bars(phase) + operators, caption)


def _bars(phase: PhaseAnswer) -> str:
    """The parts as bars in plain HTML, each starting where the previous one ends, so that every label has space."""
    shown, start = [], 0.0
    for part in phase.parts:
        share = part.seconds / phase.seconds
        bar = (
            f'<span class="bar {"ideal" if part.ideal else "lost"}" '
            f'style="margin-left:{100 * max(0.0, start):.2f}%;width:{100 * max(share, 0.002):.2f}%"></span>'
        )
        time, percent = safe(units.show(part.seconds, "time")), safe(units.show(share, "share", digits=2))
        shown.append(
            f'<li><span class="name">{safe(part.name)}</span><span class="size">{time} <small>{percent}</small></span>'
            f'<span class="track">{bar}</span><small class="why">{safe(part.why)}</small></li>'
        )
        start = min(start + share, 0.998)
    whole = safe(units.show(phase.seconds, "time"))
    return (
        f'<ol class="bars">{"".join(shown)}<li><span class="name"><b>predicted</b></span>'
        f'<span class="size">{whole}</span>'
        '<span class="track"><span class="bar whole" style="width:100%"></span></span></li></ol>'
    )


def _memory(found: Explanation) -> str:
    rows = [[safe(name), safe(units.show(size, "bytes"))] for name, size in found.memory_bytes.items()]
    return section("memory", "Memory of a device", table(("kind", "bytes"), rows, {1}))


def _advice(advice: Sequence[Advice]) -> str:
    if not advice:
        return section("advice", "Advice", "<p>No change is certain to help.</p>")
    items = []
    for number, each in enumerate(advice, start=1):
        proposal = each.proposal
        facts = [
            ("also", side_effects(each)),
            (proposal.touches, proposal.how),
            ("quality", proposal.quality),
            ("source", proposal.source),
        ]
        rows = "".join(f"<dt>{safe(name)}</dt><dd>{safe(text)}</dd>" for name, text in facts if text)
        gain = f"{gain_text(each.headline)}: {factor_text(each.headline)}"
        items.append(
            f'<li value="{number}"><b>{safe(proposal.title)}</b><br>{safe(gain)}<dl class="facts">{rows}</dl></li>'
        )
    caption = "The same cost model predicts each change; intervals are 90 % intervals of the ratio."
    return section("advice", "Advice", f'<ol class="advice">{"".join(items)}</ol>', caption)


def _notes(found: Explanation) -> str:
    notes = "".join(f"<li>{safe(note)}</li>" for note in found.notes)
    return section("notes", "Notes", f"<ul>{notes}</ul>") if notes else ""


def _foot() -> str:
    return f"<footer>Made by chipwise {safe(version('chipwise'))}. Everything here is predicted.</footer>\n"
