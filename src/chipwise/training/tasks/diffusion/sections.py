"""Report section of a denoiser: images of winner and reference design in 1, 2, 4 … steps, and real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import shown, table_of

PIXELS = 56  # side of a shown image
WHO = (("winner", "Winner"), ("baseline", "Reference design"))


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The report section ``drawn``; no section if ``samples`` contains no images."""
    held = Record.of(samples)
    if "drawn" not in held:
        return []
    drawn, labels, real = held.record("drawn"), held.sequence("labels", str), held.sequence("real", str)
    parts = [
        "<p>One image of each label, all from the same noise; the number of steps with which a design was selected is "
        "bold. Below it: the Fréchet distance on test data (lower is closer to real images).</p>"
    ]
    parts += [_table(name, drawn.record(who), labels) for who, name in shown(drawn, WHO)]
    if real:
        cells = "".join(_cell(image, label) for image, label in zip(real, labels, strict=True))
        parts.append(f"<h3>Real images</h3><div style='overflow-x:auto'><table><tr>{cells}</tr></table></div>")
    judge = escape(held.get("judge", str))
    note = f"<p>The classifier whose features the distances use was trained in this run; {judge}.</p>"
    return [Section(name="drawn", title="What it draws", html="".join([*parts, note]))]


def _table(name: str, found: Record, labels: Sequence[str]) -> str:
    rows = []
    for row in found.records("rows"):
        count = row.get("steps", int)
        steps = f"{count} step{'s' if count > 1 else ''}"
        steps = f"<b>{steps}</b>" if count == found.get("steps", int) else steps
        pairs = zip(row.sequence("images", str), labels, strict=True)
        cells = [_cell(image, f"{label}, {count}") for image, label in pairs]
        rows.append((f"{steps}<br>{row.get('distance', float):.3g}", cells))
    table = table_of(["", *map(escape, labels)], rows)
    heading = f"<h3>{escape(name)}: {_details(found)}</h3>"
    return f"{heading}<div style='overflow-x:auto'>{table}</div>{_guided(found)}"


def _details(found: Record) -> str:
    """Loss, solver, time shift, guidance and latents of a design, as one line."""
    shift = found.get("shift", float, 1.0)
    line = f"flow loss on test data {found.get('flow_loss', float):.4g}"
    line += ", multistep" if found.get("solver", str, "") == "multistep" else ""
    line += f", times shifted by {shift:g}" if shift != 1.0 else ""
    line += f", guidance scale {found.get('guidance', float):g} with two passes per step" if "guided" in found else ""
    if "latents" in found:
        latents = found.record("latents")
        side = latents.get("factor", int)
        line += (
            f"; latents of {side} x {side} pixels: real images have a distance of {latents.get('distance', float):.3g} "
            f"after encoding and decoding, and of {latents.get('real', float):.3g} without them"
        )
    return line


def _guided(found: Record) -> str:
    """Distances by guidance scale, with the design's scale in bold; empty for unguided designs."""
    rows = [(row.get("guidance", float), row.get("distance", float)) for row in found.records("guided")]
    if not rows:
        return ""
    own = found.get("guidance", float)
    names = (f"<b>{scale:g}</b>" if scale == own else f"{scale:g}" for scale, _ in rows)
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    cells = "".join(f"<td>{distance:.3g}</td>" for _, distance in rows)
    return (
        f"<table><thead><tr><th scope='row'>guidance</th>{head}</tr></thead>"
        f"<tbody><tr><th scope='row'>distance</th>{cells}</tr></tbody></table>"
    )


def _cell(image: str, label: str) -> str:
    return (
        f'<td style="padding:2px"><img src="{escape(image, quote=True)}" width="{PIXELS}" height="{PIXELS}" '
        f'alt="{escape(label, quote=True)}" style="image-rendering:pixelated"></td>'
    )
