"""Report section of a denoiser: images in 1, 2, 4 … steps, next to the reference design and real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Section

PIXELS = 56  # of a shown image
WHO = (("winner", "Winner"), ("baseline", "Reference design"))


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The section ``drawn``, as far as the samples hold it."""
    if not samples.get("drawn"):
        return []
    labels = samples["labels"]
    parts = [
        "<p>One image of each label, all from the same noise; the steps in which each design is served in bold. Below "
        "the steps: the Fréchet distance on test data (less is nearer to real images).</p>"
    ]
    for who, name in WHO:
        if who in samples["drawn"]:
            parts.append(_table(name, samples["drawn"][who], labels))
    if samples.get("real"):
        cells = "".join(_cell(image, label) for image, label in zip(samples["real"], labels, strict=True))
        parts.append(f"<h3>Real images</h3><div style='overflow-x:auto'><table><tr>{cells}</tr></table></div>")
    note = f"<p>The classifier that distances are taken on was trained here; {escape(str(samples['judge']))}.</p>"
    return [Section(name="drawn", title="What it draws", html="".join([*parts, note]))]


def _table(name: str, found: Mapping[str, Any], labels: Sequence[str]) -> str:
    head = "".join(f"<th scope='col'>{escape(label)}</th>" for label in labels)
    rows = []
    for row in found["rows"]:
        steps = f"{row['steps']} step{'s' if row['steps'] > 1 else ''}"
        steps = f"<b>{steps}</b>" if row["steps"] == found["steps"] else steps
        pairs = zip(row["images"], labels, strict=True)
        cells = "".join(_cell(image, f"{label}, {row['steps']}") for image, label in pairs)
        rows.append(f"<tr><th scope='row'>{steps}<br>{row['distance']:.3g}</th>{cells}</tr>")
    told = f"flow loss on test data {found['flow_loss']:.4g}"
    told += ", trained with shortcuts" if found["shortcut"] else ""
    told += ", multistep" if found.get("solver") == "multistep" else ""
    told += f", times shifted by {found['shift']:g}" if found.get("shift", 1.0) != 1.0 else ""
    told += f", guided by {found['guidance']:g} in two passes a step" if found.get("guided") else ""
    if latents := found.get("latents"):
        told += (
            f"; latents of {latents['factor']} x {latents['factor']} pixels: real images are {latents['distance']:.3g} "
            f"away once they were encoded and decoded, {latents['real']:.3g} as they are"
        )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<h3>{escape(name)}: {told}</h3><div style='overflow-x:auto'>{table}</div>{_guided(found)}"


def _guided(found: Mapping[str, Any]) -> str:
    """Distances by guidance, that of the design in bold; nothing of a design without."""
    if not found.get("guided"):
        return ""
    named = [(f"{row['guidance']:g}", row["guidance"] == found["guidance"]) for row in found["guided"]]
    head = "".join(f"<th scope='col'>{f'<b>{name}</b>' if own else name}</th>" for name, own in named)
    cells = "".join(f"<td>{row['distance']:.3g}</td>" for row in found["guided"])
    return (
        f"<table><thead><tr><th scope='row'>guidance</th>{head}</tr></thead>"
        f"<tbody><tr><th scope='row'>distance</th>{cells}</tr></tbody></table>"
    )


def _cell(image: str, label: str) -> str:
    return (
        f'<td style="padding:2px"><img src="{escape(image, quote=True)}" width="{PIXELS}" height="{PIXELS}" '
        f'alt="{escape(label, quote=True)}" style="image-rendering:pixelated"></td>'
    )
