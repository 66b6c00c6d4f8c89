"""Reads users' image files with Pillow. Only regular files of limited size are accepted."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.extras import optional_imports
from chipwise.core.files import read_bytes
from chipwise.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

MOST_BYTES = 2**28  # most bytes of an image file
MOST_PIXELS = 2**26  # most pixels of an image
_BROKEN = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError, MemoryError),
    *(struct.error, zlib.error),
)  # exceptions that decoders raise for broken files


def read_image(path: Path, *, channels: int) -> PillowImage:
    """Reads an image file as a Pillow image: in grey for one channel, in RGB for more channels.

    Raises:
        SpecError: The file does not exist or is not a regular file.
        DataError: The file is not an image, or the image is too large.
    """
    return decoded_image(read_bytes(path, most=MOST_BYTES), where=str(path), channels=channels)


def decoded_image(content: bytes, *, where: str, channels: int) -> PillowImage:
    """Decodes the image in ``content``; ``where`` names it in error messages.

    Raises:
        DataError: ``content`` is not an image, or the image is too large.
    """
    with optional_imports():
        from PIL import Image, UnidentifiedImageError
    too_large = f"{where}: has more than {MOST_PIXELS / 1e6:.0f} million pixels; scale it down first"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as image:
                width, height = image.size
                if width * height <= MOST_PIXELS:
                    return image.convert("L" if channels == 1 else "RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pass
    except UnidentifiedImageError:
        raise DataError(f"{where}: not an image that Pillow reads") from None
    except _BROKEN as error:
        raise DataError(f"{where}: not an image that Pillow reads: {error or type(error).__name__}") from None
    raise DataError(too_large)
