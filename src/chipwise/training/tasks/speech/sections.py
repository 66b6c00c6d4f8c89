"""Report sections of keyword spotting: spectrograms with predictions, noise, times, and a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, figure, grid
from chipwise.training.tasks.sound_sections import WHO, noise_section, synthetic_note, times_section

SIZE = (150, 80)  # pixels of a shown spectrogram


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The sections ``spectrograms``, ``noise``, ``real_time`` and ``confusion``, except those without samples."""
    held, found = Record.of(samples), []
    synthetic = synthetic_note(held)
    if clips := held.records("clips"):
        note = (
            "Test clips as the models see them (time from left to right, low bands below), their words, and the "
            f"answers of winner and reference design; wrong ones in bold.{synthetic}"
        )
        html = grid(note, map(_figure, clips))
        found.append(Section(name="spectrograms", title="What it hears", html=html))
    if rows := held.records("noise"):
        note = f"Measured accuracy on test clips by signal-to-noise ratio.{synthetic}"
        found.append(noise_section(rows, "Accuracy by noise", note, sound="word", entries="clips"))
    if "times" in held:
        found.append(times_section(held.record("times")))
    if counts := held.sequence("confusion", tuple[int, ...]):
        html = f"<p>{synthetic.strip()}</p>" if synthetic else ""
        html += confusion_table(counts, held.sequence("classes", str), entries="test clips")
        found.append(Section(name="confusion", title="Confused words", html=html))
    return found


def _figure(item: Record) -> str:
    right = item.get("label", str)
    label = escape(right)
    noise = f", {item.get('snr_db', float):g} dB over noise" if "snr_db" in item else ""
    caption = [f"{label}{noise}", *answers(item, right, WHO)]
    return figure(item.get("image", str), f"spectrogram of {label}", caption, size=SIZE, room="12em")
