"""Report sections shared by sound tasks: answers by noise, and times relative to the sound's length."""

from __future__ import annotations

from collections.abc import Sequence

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import shown, table

WHO = (("winner", "winner"), ("baseline", "reference design"))


def synthetic_note(samples: Record) -> str:
    """A sentence after others where the speech is synthetic."""
    return " The speech is synthetic (espeak-ng)." if samples.get("synthetic", bool, False) else ""


def noise_section(rows: Sequence[Record], title: str, note: str, *, sound: str, entries: str) -> Section:
    """The section ``noise``: a share of each model by the ratio of sound to noise.

    Args:
        rows: With ``snr_db``, the count of ``entries`` and the share of each model.
        title: Title of the section.
        note: Above the table.
        sound: What is louder than the noise.
        entries: What is counted.
    """
    who = shown(rows[0], WHO)
    lines = [
        (
            f"{row.get('snr_db', float):g} dB",
            row.get(entries, int),
            *(f"{100 * row.get(key, float):.1f} %" for key, _ in who),
        )
        for row in rows
    ]
    head = [f"{sound} over noise", entries, *(name for _, name in who)]
    return Section(name="noise", title=title, html=table(note, head, lines))


def times_section(times: Record) -> Section:
    """The section ``real_time``: times of model and front end, and the real-time factor of both and of the model."""
    clip_s, front_s = times.get("clip_s", float), times.get("front_end_s", float)
    lines = []
    for key, name in shown(times, WHO):
        pass_s = times.get(key, float)
        both, alone = (front_s + pass_s) / clip_s, pass_s / clip_s
        lines.append((name, f"{1e6 * pass_s:.0f}", f"{1e6 * front_s:.0f}", f"{both:.2g}", f"{alone:.2g}"))
    note = (
        f"Seconds of computing for each second of audio, measured on the machine that judged the exported files "
        f"(medians; clips of {clip_s:g} s; the front end is NumPy, outside the exported graph)."
    )
    head = ["", "model, µs a clip", "front end, µs a clip", "real-time factor", "of the model alone"]
    return Section(name="real_time", title="Real-time factor", html=table(note, head, lines))
