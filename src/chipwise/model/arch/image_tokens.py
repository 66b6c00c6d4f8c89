"""Number of vision-tower passes and of decoder tokens per image, by the rule of each model family.

References:
    The processors of transformers 5 (``processing_*.py`` and ``image_processing_*.py`` of each family), which define
    these rules. The tests compare the results with the processors where transformers is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.sound.stem import LONGEST_S, SoundStem

MOST_PIXELS = 100_000  # largest side of an image
THIN = 200  # largest ratio of the sides; more is treated as a mistake
SLACK = 1.1  # factor per side by which an image may exceed the bound before LLaVA-OneVision shrinks it
LARGEST_SIDE = 4096  # pixels; Idefics 3 cuts no larger image


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """How a tower reads one image or sound: number of passes, positions per pass, and tokens for the decoder."""

    passes: int
    positions: int  # per pass
    tokens: int


def image_tokens(tower: ArchSpec, *, height: int, width: int) -> Read:
    """How ``tower`` reads an image of ``height`` by ``width`` pixels.

    Raises:
        SpecError: A side is not from 1 to 100,000 pixels, or one side is over 200 times as long as the other.
        Unsupported: The model is not a tower that reads images.
    """
    for name, value in (("height", height), ("width", width)):
        if not 1 <= value <= MOST_PIXELS:
            raise SpecError(f"must be from 1 to {MOST_PIXELS:,} pixels, not {value}", field=f"image_size.{name}")
    if max(height, width) > THIN * min(height, width):
        raise SpecError(f"{height} x {width}: one side is over {THIN} times as long as the other", field="image_size")
    projector = tower.head_as(Projector)
    return RULES[projector.tiling](tower.stem_as(ImageStem), projector, height, width)


def sound_tokens(tower: ArchSpec, *, seconds: float) -> Read:
    """How ``tower`` reads ``seconds`` seconds of sound, in windows of fixed length that are padded with silence.

    Raises:
        SpecError: ``tower`` reads no sound, or ``seconds`` is not above 0 or is more than the model reads.
    """
    projector = tower.head_as(Projector)
    if projector.tiling in RULES:
        raise SpecError(f"{tower.name} is not a tower that reads sound", field="towers")
    stem = tower.stem_as(SoundStem)
    if not 0 < seconds <= LONGEST_S:
        raise SpecError(f"must be above 0 and at most a day, not {seconds}", field="audio_s")
    several = projector.pool * projector.join
    if projector.tiling == "seconds":
        if seconds > stem.seconds:
            raise SpecError(f"the model reads at most {stem.seconds:g} s, not {seconds:g}", field="audio_s")
        positions = replace(stem, seconds=float(seconds)).tokens
        return Read(passes=1, positions=stem.tokens, tokens=max(1, positions // several) + projector.marks)
    passes = math.ceil(seconds / stem.seconds)
    return Read(passes=passes, positions=stem.tokens, tokens=passes * (stem.tokens // several) + projector.marks)


def _each(stem: ImageStem, projector: Projector) -> int:
    """Side of the square grid of tokens that one pass makes from an image of the tower's own size."""
    return stem.grid // projector.pool // projector.join


def _whole(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    return _tiled(stem, projector, 1, 1)


def _native(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    """Tiling ``native``: each side is rounded to whole tokens. An image with too many or too few pixels is scaled."""
    factor = stem.patch * projector.join * projector.pool
    rows, columns = round(height / factor), round(width / factor)
    pixels = rows * columns * factor**2
    if pixels > projector.most_pixels:
        shrunk = math.sqrt(height * width / projector.most_pixels)
        rows, columns = (max(1, math.floor(side / shrunk / factor)) for side in (height, width))
    elif pixels < projector.least_pixels:
        grown = math.sqrt(projector.least_pixels / (height * width))
        rows, columns = (math.ceil(side * grown / factor) for side in (height, width))
    tokens = max(1, rows) * max(1, columns)
    patches = tokens * (projector.join * projector.pool) ** 2
    return Read(passes=1, positions=patches + stem.prefix_tokens, tokens=tokens + projector.marks)


def _longest(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    """Tiling ``longest``: scales the longest side to a fixed size, then cuts the image into tiles.

    With several tiles, the whole image is also read, and a newline token follows each row of tiles.
    """
    ratio, most = width / height, min(projector.longest, LARGEST_SIDE)
    if width >= height:
        width, height = projector.longest, _even(int(projector.longest / ratio))
        width, height = (most, int(most / ratio)) if width > most else (width, height)
    else:
        width, height = _even(int(projector.longest * ratio)), projector.longest
        width, height = (int(most * ratio), most) if height > most else (width, height)
    rows, columns = (max(1, math.ceil(side / stem.image_size)) for side in (height, width))
    found = _tiled(stem, projector, rows, columns)
    return replace(found, tokens=found.tokens + rows) if found.passes > 1 else found


def _even(side: int) -> int:
    return max(1, side + side % 2)


def _grids(tiles: int) -> list[tuple[int, int]]:
    """Rows and columns of all grids with at most ``tiles`` tiles, smallest first."""
    every = [(rows, columns) for columns in range(1, tiles + 1) for rows in range(1, tiles // columns + 1)]
    return sorted(every, key=lambda grid: grid[0] * grid[1])


def _ratio(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    """Tiling ``ratio``: the grid whose aspect ratio is closest to the image's.

    On a tie, a larger grid wins if the image has more than half as many pixels as the grid.
    """
    side, best, nearest = stem.image_size, (1, 1), math.inf
    for rows, columns in _grids(projector.tiles):
        off = abs(width / height - columns / rows)
        if off < nearest or (off == nearest and height * width > 0.5 * side**2 * rows * columns):
            nearest, best = off, (rows, columns)
    return _tiled(stem, projector, *best)


def _canvas(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    """Tiling ``canvas``: the grid that enlarges the image least or, if all grids shrink the image, shrinks it least.

    On a tie, the grid with the fewest tiles wins.
    """
    side = stem.image_size
    scales = {grid: min(grid[0] * side / height, grid[1] * side / width) for grid in _grids(projector.tiles)}
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    best = min((grid for grid, scale in scales.items() if scale == chosen), key=lambda grid: grid[0] * grid[1])
    return _tiled(stem, projector, *best)


def _tiled(stem: ImageStem, projector: Projector, rows: int, columns: int) -> Read:
    """Reads each tile in one pass, and with several tiles also the whole image in one pass. Adds marker tokens."""
    each, tiles = _each(stem, projector) ** 2, rows * columns
    if tiles == 1:
        return Read(passes=1, positions=stem.tokens, tokens=each + projector.marks)
    tokens = (tiles + 1) * each + tiles * projector.tile_marks + projector.marks
    return Read(passes=tiles + 1, positions=stem.tokens, tokens=tokens)


def _pinpoints(stem: ImageStem, projector: Projector, height: int, width: int) -> Read:
    """Tiling ``pinpoints``: scales the image to one of the listed sizes, then reads the tiles and the whole image.

    The chosen size keeps the most pixels; on a tie, it needs the least padding.
    """
    side, each = stem.image_size, _each(stem, projector)

    def kept_and_wasted(pinpoint: tuple[int, ...]) -> tuple[int, int]:
        scale = min(pinpoint[1] / width, pinpoint[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - pinpoint[0] * pinpoint[1]

    best = max(projector.pinpoints, key=kept_and_wasted)
    down, across = best[0] // side, best[1] // side
    rows, columns = down * each, across * each
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    tokens = rows * columns + rows
    if projector.tiles > 1:
        shrunk = math.sqrt(rows * columns / (projector.tiles * each**2))
        if shrunk > SLACK:
            tokens = int(rows // shrunk) * int(columns // shrunk) + int(rows // shrunk)
    whole = each**2
    return Read(passes=down * across + 1, positions=stem.tokens, tokens=tokens + whole + projector.marks)


RULES: dict[str, Callable[[ImageStem, Projector, int, int], Read]] = {
    "whole": _whole,
    "native": _native,
    "longest": _longest,
    "ratio": _ratio,
    "canvas": _canvas,
    "pinpoints": _pinpoints,
}
