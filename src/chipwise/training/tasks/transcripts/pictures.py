"""What a report shows of transcription: spectrograms with what was said and recognised, errors, real-time factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chipwise.core.statistics import Z90
from chipwise.training.tasks.protocol import Picture
from chipwise.training.tasks.speech.pictures import WHO, times_table

WIDTH, HEIGHT = 320, 80  # pixels of a shown spectrogram


def drawn(samples: Mapping[str, Any]) -> Sequence[Picture]:
    """The sections ``spectrograms``, ``errors``, ``noise`` and ``real_time``, as far as the samples hold them."""
    found = []
    synthetic = " The speech is synthetic (espeak-ng)." if samples.get("synthetic") else ""
    if samples.get("clips"):
        note = (
            "<p>Test utterances as the models hear them (time from left to right, low bands below), what was said, and "
            f"what winner and reference design wrote down; what is wrong in bold.{synthetic}</p>"
        )
        shown = "".join(_figure(item) for item in samples["clips"])
        html = f'{note}<div style="display:flex;flex-wrap:wrap;gap:12px">{shown}</div>'
        found.append(Picture(name="spectrograms", title="What it hears", html=html))
    if samples.get("rates"):
        found.append(Picture(name="errors", title="Characters and words", html=_rates(samples["rates"], synthetic)))
    if samples.get("noise"):
        found.append(Picture(name="noise", title="Errors by noise", html=_noise(samples["noise"], synthetic)))
    if samples.get("times"):
        found.append(Picture(name="real_time", title="Real-time factor", html=times_table(samples["times"])))
    return found


def _figure(item: Mapping[str, Any]) -> str:
    text = escape(str(item["text"]))
    said = [f"said: {text}"]
    for who, name in WHO:
        if who in item:
            answer = escape(str(item[who])) or "(nothing)"
            said.append(f"{name}: {answer if item[who] == item['text'] else f'<b>{answer}</b>'}")
    if "snr_db" in item:
        said.append(f"{float(item['snr_db']):g} dB over noise")
    image = (
        f'<img src="{escape(str(item["image"]), quote=True)}" width="{WIDTH}" height="{HEIGHT}" '
        f'alt="spectrogram of: {text}">'
    )
    caption = "<br>".join(said)
    return f'<figure style="margin:0;width:24em;font-size:.85em">{image}<figcaption>{caption}</figcaption></figure>'


def _rates(rates: Mapping[str, Any], synthetic: str) -> str:
    lines = []
    for who, name in WHO:
        if who in rates:
            cells = "".join(f"<td>{_rate(rates[who][part])}</td>" for part in ("characters", "words"))
            lines.append(f"<tr><th scope='row'>{name}</th>{cells}</tr>")
    note = (
        "<p>Edits (insertions, deletions, substitutions) over what was said, measured on test speakers by greedy "
        f"decoding, with 90 % intervals over speakers.{synthetic}</p>"
    )
    head = "<th></th><th scope='col'>character error rate</th><th scope='col'>word error rate</th>"
    return f"{note}<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _rate(found: Mapping[str, Any]) -> str:
    """A rate in percent with its interval."""
    rate, error = 100 * float(found["rate"]), found["std_error"]
    return f"{rate:.1f} %" + ("" if error is None else f" ± {100 * Z90 * float(error):.1f}")


def _noise(rows: Sequence[Mapping[str, Any]], synthetic: str) -> str:
    shown = [(who, name) for who, name in WHO if who in rows[0]]
    head = "".join(f"<th scope='col'>{name}</th>" for _, name in shown)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{100 * float(row[who]):.1f} %</td>" for who, _ in shown)
        lines.append(
            f"<tr><th scope='row'>{float(row['snr_db']):g} dB</th><td>{int(row['utterances'])}</td>{cells}</tr>"
        )
    note = f"<p>Character error rate (measured) on test utterances by the power of speech over noise.{synthetic}</p>"
    return (
        f"{note}<table><thead><tr><th>speech over noise</th><th scope='col'>utterances</th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
