"""Report sections shared by sound tasks: results by noise level, and times relative to the sound's length."""

from __future__ import annotations

from collections.abc import Sequence

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import shown, table

WHO = (("winner", "winner"), ("baseline", "reference design"))


def synthetic_note(samples: Record) -> str:
    """A sentence to append if the speech is synthetic; else empty."""
    return " The speech is synthetic (espeak-ng)." if samples.get("synthetic", bool, False) else ""


def noise_section(rows: Sequence[Record], title: str, note: str, *, sound: str, entries: str) -> Section:
    """The report section ``noise``: accuracy or error rate of each model at each SNR.

    Args:
        rows: For each SNR, a record of ``snr_db``, the number of ``entries``, and each model's accuracy or error rate.
        title: Title of the section.
        note: Text above the table.
        sound: Name of the signal.
        entries: Name of the counted units, such as clips.
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
    """The report section ``real_time``: times of model and front end, real-time factors with and without front end."""
    clip_s, front_s = times.get("clip_s", float), times.get("front_end_s", float)
    lines = []
    for key, name in shown(times, WHO):
        pass_s = times.get(key, float)
        both, alone = (front_s + pass_s) / clip_s, pass_s / clip_s
        lines.append((name, f"{1e6 * pass_s:.0f}", f"{1e6 * front_s:.0f}", f"{both:.2g}", f"{alone:.2g}"))
    note = (
        f"Seconds of computing for each second of audio, measured on the machine that evaluated the exported files "
        f"(medians; clips of {clip_s:g} s; the front end is NumPy, outside the exported graph)."
    )
    head = ["", "model, µs a clip", "front end, µs a clip", "real-time factor", "real-time factor, model only"]
    return Section(name="real_time", title="Real-time factor", html=table(note, head, lines))
