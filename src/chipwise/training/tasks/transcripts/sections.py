"""Report sections of transcription: spectrograms with true and predicted texts, error rates, real-time factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from chipwise.core.record import Record
from chipwise.core.statistics import Z90
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, figure, grid, shown, table
from chipwise.training.tasks.sound_sections import WHO, noise_section, synthetic_note, times_section

SIZE = (320, 80)  # pixels of a shown spectrogram


def sections(samples: Mapping[str, object]) -> Sequence[Section]:
    """The sections ``spectrograms``, ``errors``, ``noise`` and ``real_time``, except those without samples."""
    held, found = Record.of(samples), []
    synthetic = synthetic_note(held)
    if clips := held.records("clips"):
        note = (
            "Test utterances as the models see them (time from left to right, low bands below), the true text, and "
            f"the transcripts of winner and reference design; wrong ones in bold.{synthetic}"
        )
        html = grid(note, map(_figure, clips))
        found.append(Section(name="spectrograms", title="What it hears", html=html))
    if "rates" in held:
        rates = held.record("rates")
        note = (
            "Edits (insertions, deletions, substitutions) relative to the true text, measured on test speakers with "
            f"greedy decoding, with 90 % intervals over speakers.{synthetic}"
        )
        rows = [
            (name, *(_rate(rates.record(key).record(part)) for part in ("characters", "words")))
            for key, name in shown(rates, WHO)
        ]
        html = table(note, ["", "character error rate", "word error rate"], rows)
        found.append(Section(name="errors", title="Characters and words", html=html))
    if noise := held.records("noise"):
        note = f"Measured character error rate on test utterances by signal-to-noise ratio.{synthetic}"
        found.append(noise_section(noise, "Errors by noise", note, sound="speech", entries="utterances"))
    if "times" in held:
        found.append(times_section(held.record("times")))
    return found


def _figure(item: Record) -> str:
    right = item.get("text", str)
    text = escape(right)
    noise = [f"{item.get('snr_db', float):g} dB over noise"] if "snr_db" in item else []
    caption = [f"said: {text}", *answers(item, right, WHO), *noise]
    return figure(item.get("image", str), f"spectrogram of: {text}", caption, size=SIZE, room="24em")


def _rate(found: Record) -> str:
    """An error rate in percent with its interval."""
    error = found.get("std_error", float, None)
    return f"{100 * found.get('rate', float):.1f} %" + ("" if error is None else f" ± {100 * Z90 * error:.1f}")
