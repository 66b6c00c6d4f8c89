"""Synthesises words with the program ``espeak-ng``, for runs without recordings. Reports call this speech synthetic.

Each voice variant counts as a speaker; variants differ in pitch, formants and breath. In each take, a speaker speaks
every word once; takes differ in accent, speed and pitch.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chipwise.errors import DataError
from chipwise.training.data.sound.waves import decoded

PROGRAM = "espeak-ng"
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp")
SPEEDS = (130, 200)  # words per minute
PITCHES = (30, 70)  # on espeak's scale from 0 to 99
TIMEOUT_S = 20.0  # time limit for one word, which normally takes about 10 ms
WORDS = (
    "yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go",
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
)  # fmt: skip
"""The 20 command words of Warden 2018, Speech Commands, arXiv:1804.03209."""


def require_program() -> str:
    """Returns the path of ``espeak-ng``.

    Raises:
        DataError: ``espeak-ng`` is not installed.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise DataError(
            f"{PROGRAM} is not installed: run `apt-get install {PROGRAM}`, or name your own recordings with "
            "`data: {source: folder, path: words}`, one folder of WAV files for each word"
        )
    return found


def variants() -> tuple[str, ...]:
    """Names of the voice variants that are installed, sorted."""
    lines = _run([require_program(), "--voices=variant"]).decode("utf-8", "replace").splitlines()[1:]
    files = {part.removeprefix("!v/") for line in lines for part in line.split() if part.startswith("!v/")}
    if not files:
        raise DataError(f"{PROGRAM} finds no voice variants; install its data (package espeak-ng-data)")
    return tuple(sorted(files))


def spoken(word: str, variant: str, *, take: int, seed: int) -> NDArray[np.float32]:
    """Samples of a word spoken by a voice variant, at 16 kHz and from -1 to 1. Equal arguments give equal samples."""
    random = np.random.default_rng([seed, take, *variant.encode()])  # a take has one accent, speed and pitch
    accent = ACCENTS[int(random.integers(len(ACCENTS)))]
    speed, pitch = int(random.integers(*SPEEDS)), int(random.integers(*PITCHES))
    voice = f"{accent}+{variant}"
    command = [require_program(), "--stdout", "-v", voice, "-s", str(speed), "-p", str(pitch), "--", word]
    return decoded(_run(command), where=f"{PROGRAM} -v {voice}")


def _run(command: Sequence[str]) -> bytes:
    try:
        found = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise DataError(f"{' '.join(command)}: {error}") from None
    return found.stdout
