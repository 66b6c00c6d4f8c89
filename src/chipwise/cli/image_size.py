"""Options for requests with images or sound."""

from __future__ import annotations

import re

import typer

IMAGES = "Images per request, for a model that reads images."
SIZE = "Width and height of each image in pixels."
DEFAULT = "1024x768"
AUDIO = "Seconds of sound per request (audio models). Default: the model's usual length."


def parse(text: str) -> tuple[int, int]:
    """Parses ``1024x768`` into width and height."""
    found = re.fullmatch(r"(\d{1,6})[xX×](\d{1,6})", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r:.40} is not an image size; write width and height, such as 1024x768")
    return int(found[1]), int(found[2])
