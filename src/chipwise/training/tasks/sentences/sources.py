"""Sources of labelled texts: synthetic voice commands, or the user's table."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from chipwise.core.fields import check_fields, positive
from chipwise.errors import DataError, SpecError
from chipwise.training.data.text_rows import text_rows

LICENCE = "CC0 (made by chipwise)"
COMMANDS = {  # templates by label; * is replaced with an object or room, # with a number
    "light on": ("turn on the * light", "turn the * light on", "make it brighter in the *", "the * is too dark"),
    "light off": ("turn off the * light", "turn the * light off", "make it dark in the *", "no more light in the *"),
    "warmer": ("set the * to # degrees more", "turn the * heating up", "the * is too cold", "warm up the *"),
    "colder": ("set the * to # degrees less", "turn the * heating down", "the * is too warm", "cool down the *"),
    "alarm on": ("wake me at #", "set an alarm for #", "alarm at # please", "i have to get up at #"),
    "alarm off": ("do not wake me at #", "cancel the alarm for #", "no alarm at #", "let me sleep at #"),
    "timer": ("set a timer for # minutes", "count down # minutes", "tell me when # minutes are over"),
    "play": ("play some music in the *", "turn on the music in the *", "start the song again", "play song number #"),
    "stop": ("stop the music in the *", "turn off the music in the *", "no more music", "do not play song number #"),
    "louder": ("turn the music up", "louder in the *", "i cannot hear the music in the *", "volume up by #"),
    "quieter": ("turn the music down", "not so loud in the *", "the music in the * is too loud", "volume down by #"),
    "weather": ("will it be cold at #", "is it warm outside", "how many degrees will it be at #", "will it rain at #"),
}
PLACES = ("kitchen", "bathroom", "hall", "bedroom", "office", "garage", "cellar", "garden")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
BEFORE = ("", "", "please", "hey house", "could you", "i think", "well", "after i turned off the radio")
BEHIND = ("", "", "please", "now", "right away", "before i turn on the oven", "thank you")
SLIPS = 0.04  # share of words replaced with a word of another command, to imitate speech recognition errors


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencesSpec:
    """The ``data`` of a run file for sentences.

    ``commands`` generates ``texts`` voice commands of twelve kinds, some with misrecognised words. ``files`` reads
    ``path``, a CSV, JSONL or Parquet file with the columns text and label.
    """

    source: Literal["commands", "files"] = "commands"
    texts: int = 12_000
    seed: int = 0
    path: str = ""
    licence: str = "not stated"
    validation_share: float = 0.1  # share of the texts; the test part is as large

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "texts", most=1_000_000)
        if self.source == "files" and not self.path:
            raise SpecError("is missing; name the file with texts and labels", field="path")
        if not 0 < self.validation_share <= 0.25:
            raise SpecError(f"must be above 0 and at most 0.25, not {self.validation_share}", field="validation_share")


class Texts(NamedTuple):
    """Labelled texts without repetitions, and their source."""

    labels: dict[str, str]  # label by text
    source: str
    licence: str


def read_texts(spec: SentencesSpec, base: Path) -> Texts:
    """Reads or generates the texts of a run.

    Raises:
        DataError: The file is missing or broken, or a text has two labels; the message names the row or the text.
        MissingExtra: The package that reads the file is not installed.
    """
    if spec.source == "commands":
        source = f"{spec.texts:,} synthetic commands, duplicates removed (seed {spec.seed})"
        return Texts(commands(spec.texts, seed=spec.seed), source, LICENCE)
    path = base / spec.path
    found: dict[str, str] = {}
    for row in text_rows(path, ("text", "label")):
        if found.setdefault(row["text"], row["label"]) != row["label"]:
            raise DataError(f"{path}: {row['text']!r:.80} has two labels, {found[row['text']]!r} and {row['label']!r}")
    return Texts(found, str(path), spec.licence)


def commands(count: int, *, seed: int) -> dict[str, str]:
    """Generates labelled commands, without duplicates."""
    drawn = random.Random(seed)
    words = sorted({word for forms in COMMANDS.values() for form in forms for word in form.split() if word not in "*#"})
    found = {}
    for _ in range(count):
        label = drawn.choice(tuple(COMMANDS))
        asked = drawn.choice(COMMANDS[label]).replace("*", drawn.choice(PLACES)).replace("#", drawn.choice(NUMBERS))
        text = f"{drawn.choice(BEFORE)} {asked} {drawn.choice(BEHIND)}"
        found[" ".join(drawn.choice(words) if drawn.random() < SLIPS else word for word in text.split())] = label
    return found
