"""Report sections of transcription: spectrograms with true and predicted texts, errors, real-time factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.core.statistics import Z90
from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, figure, grid, shown, table
from chipwise.training.tasks.sound_sections import WHO, noise_section, synthetic_note, times_section

SIZE = (320, 80)  # pixels of a shown spectrogram


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``spectrograms``, ``errors``, ``noise`` and ``real_time``, as far as the samples hold them."""
    found, synthetic = [], synthetic_note(samples)
    if samples.get("clips"):
        note = (
            "Test utterances as the models hear them (time from left to right, low bands below), what was said, and "
            f"what winner and reference design wrote down; what is wrong in bold.{synthetic}"
        )
        html = grid(note, map(_figure, samples["clips"]))
        found.append(Section(name="spectrograms", title="What it hears", html=html))
    if rates := samples.get("rates"):
        note = (
            "Edits (insertions, deletions, substitutions) over what was said, measured on test speakers by greedy "
            f"decoding, with 90 % intervals over speakers.{synthetic}"
        )
        rows = [
            (name, *(_rate(rates[key][part]) for part in ("characters", "words"))) for key, name in shown(rates, WHO)
        ]
        html = table(note, ["", "character error rate", "word error rate"], rows)
        found.append(Section(name="errors", title="Characters and words", html=html))
    if samples.get("noise"):
        note = f"Character error rate (measured) on test utterances by the power of speech over noise.{synthetic}"
        found.append(noise_section(samples["noise"], "Errors by noise", note, sound="speech", entries="utterances"))
    if samples.get("times"):
        found.append(times_section(samples["times"]))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    text = escape(str(item["text"]))
    noise = [f"{float(item['snr_db']):g} dB over noise"] if "snr_db" in item else []
    caption = [f"said: {text}", *answers(item, item["text"], WHO), *noise]
    return figure(item["image"], f"spectrogram of: {text}", caption, size=SIZE, room="24em")


def _rate(found: Mapping[str, Any]) -> str:
    """A rate in percent with its interval."""
    rate, error = 100 * float(found["rate"]), found["std_error"]
    return f"{rate:.1f} %" + ("" if error is None else f" ± {100 * Z90 * float(error):.1f}")
