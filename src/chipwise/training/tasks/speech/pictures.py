"""What a report shows of keyword spotting: spectrograms with what was recognised, noise, times, confused words."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.training.tasks.protocol import Picture
from chipwise.training.tasks.vision.pictures import confusion_table

WIDTH, HEIGHT = 150, 80  # pixels of a shown spectrogram
WHO = (("winner", "winner"), ("baseline", "reference design"))


def drawn(samples: Mapping[str, Any]) -> Sequence[Picture]:
    """The sections ``spectrograms``, ``noise``, ``real_time`` and ``confusion``, as far as the samples hold them."""
    found = []
    synthetic = " The speech is synthetic (espeak-ng)." if samples.get("synthetic") else ""
    if samples.get("clips"):
        note = (
            f"<p>Test clips as the models see them (time from left to right, low bands below), their words, and the "
            f"answers of winner and reference design; wrong ones in bold.{synthetic}</p>"
        )
        shown = "".join(_figure(item) for item in samples["clips"])
        html = f'{note}<div style="display:flex;flex-wrap:wrap;gap:12px">{shown}</div>'
        found.append(Picture(name="spectrograms", title="What it hears", html=html))
    if samples.get("noise"):
        found.append(Picture(name="noise", title="Accuracy by noise", html=_noise(samples["noise"], synthetic)))
    if samples.get("times"):
        found.append(Picture(name="real_time", title="Real-time factor", html=times_table(samples["times"])))
    if samples.get("confusion"):
        html = f"<p>{synthetic.strip()}</p>" if synthetic else ""
        html += confusion_table(samples["confusion"], samples["classes"], entries="test clips")
        found.append(Picture(name="confusion", title="Which words it confuses", html=html))
    return found


def spectrogram(bands_MT: NDArray[np.floating]) -> str:
    """A log-mel spectrogram as a PNG data URI; the loudest value is dark, low bands lie below."""
    low, high = float(bands_MT.min()), float(bands_MT.max())
    shades = 255 - np.round(255 * (bands_MT[::-1] - low) / max(high - low, 1e-9)).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(grey_png(shades)).decode()}"


def grey_png(pixels_YX: NDArray[np.uint8]) -> bytes:
    """A grey image as a PNG file.

    References:
        PNG specification, W3C, third edition: chunks, section 5; filter type 0 of every row, section 9.
    """
    rows, columns = pixels_YX.shape
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels_YX)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    made = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def _figure(item: Mapping[str, Any]) -> str:
    said = []
    for who, name in WHO:
        if who in item:
            answer = escape(str(item[who]))
            said.append(f"{name}: {answer if item[who] == item['label'] else f'<b>{answer}</b>'}")
    label = escape(str(item["label"]))
    noise = f", {float(item['snr_db']):g} dB over noise" if "snr_db" in item else ""
    image = (
        f'<img src="{escape(str(item["image"]), quote=True)}" width="{WIDTH}" height="{HEIGHT}" '
        f'alt="spectrogram of {label}">'
    )
    caption = "<br>".join([f"{label}{noise}", *said])
    return f'<figure style="margin:0;width:12em;font-size:.85em">{image}<figcaption>{caption}</figcaption></figure>'


def _noise(rows: Sequence[Mapping[str, Any]], synthetic: str) -> str:
    shown = [(who, name) for who, name in WHO if who in rows[0]]
    head = "".join(f"<th scope='col'>{name}</th>" for _, name in shown)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{100 * float(row[who]):.1f} %</td>" for who, _ in shown)
        lines.append(f"<tr><th scope='row'>{float(row['snr_db']):g} dB</th><td>{int(row['clips'])}</td>{cells}</tr>")
    note = f"<p>Accuracy (measured) on test clips by the power of the word over that of the noise.{synthetic}</p>"
    return (
        f"{note}<table><thead><tr><th>word over noise</th><th scope='col'>clips</th>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def times_table(times: Mapping[str, float]) -> str:
    """Times of model and front end, and the real-time factor of both and of the model alone."""
    clip_s, front_s = times["clip_s"], times["front_end_s"]
    lines = []
    for who, name in WHO:
        if who in times:
            total_s = front_s + times[who]
            cells = f"<td>{1e6 * times[who]:.0f}</td><td>{1e6 * front_s:.0f}</td><td>{total_s / clip_s:.2g}</td>"
            lines.append(f"<tr><th scope='row'>{name}</th>{cells}<td>{times[who] / clip_s:.2g}</td></tr>")
    note = (
        f"<p>Seconds of computing for each second of audio, measured on the machine that judged the exported files "
        f"(medians; clips of {clip_s:g} s; the front end is NumPy, outside the exported graph).</p>"
    )
    head = "".join(
        f"<th scope='col'>{name}</th>"
        for name in ("model, µs a clip", "front end, µs a clip", "real-time factor", "of the model alone")
    )
    return f"{note}<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
