"""Report sections of keyword spotting: spectrograms with predictions, noise, times, confused words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.training.tasks.protocol import Section
from chipwise.training.tasks.sections import answers, confusion_table, figure, grid
from chipwise.training.tasks.sound_sections import WHO, noise_section, synthetic_note, times_section

SIZE = (150, 80)  # pixels of a shown spectrogram


def sections(samples: Mapping[str, Any]) -> Sequence[Section]:
    """The sections ``spectrograms``, ``noise``, ``real_time`` and ``confusion``, as far as the samples hold them."""
    found, synthetic = [], synthetic_note(samples)
    if samples.get("clips"):
        note = (
            "Test clips as the models see them (time from left to right, low bands below), their words, and the "
            f"answers of winner and reference design; wrong ones in bold.{synthetic}"
        )
        html = grid(note, map(_figure, samples["clips"]))
        found.append(Section(name="spectrograms", title="What it hears", html=html))
    if samples.get("noise"):
        note = f"Accuracy (measured) on test clips by the power of the word over that of the noise.{synthetic}"
        found.append(noise_section(samples["noise"], "Accuracy by noise", note, sound="word", entries="clips"))
    if samples.get("times"):
        found.append(times_section(samples["times"]))
    if samples.get("confusion"):
        html = f"<p>{synthetic.strip()}</p>" if synthetic else ""
        html += confusion_table(samples["confusion"], samples["classes"], entries="test clips")
        found.append(Section(name="confusion", title="Which words it confuses", html=html))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    label = escape(str(item["label"]))
    noise = f", {float(item['snr_db']):g} dB over noise" if "snr_db" in item else ""
    caption = [f"{label}{noise}", *answers(item, item["label"], WHO)]
    return figure(item["image"], f"spectrogram of {label}", caption, size=SIZE, room="12em")
