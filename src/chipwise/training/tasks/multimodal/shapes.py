"""Synthetic images of coloured shapes, with questions about them.

An image has two to four shapes in the cells of a 3 x 3 grid, each moved by up to a pixel, on a ground of noise. The
questions ask for counts, colours, places, comparisons and presence; what they ask has one right answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIDE = 24
LICENCE = "none needed: synthetic, drawn by chipwise"
KINDS = ("circle", "square", "triangle")
COLOURS = {"red": (220, 50, 47), "green": (60, 170, 60), "blue": (50, 90, 220), "yellow": (230, 200, 40)}
NUMBERS = ("zero", "one", "two", "three", "four")
PLACES = ("left", "middle", "right")
CELL = 8  # pixels of a cell
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One shape: its kind and position."""

    kind: str
    colour: str
    row: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeQuestions:
    """Images with questions: ``image`` is the number of the image that a question is about."""

    pixels: NDArray[np.uint8]  # (n, Y, X, 3)
    image: NDArray[np.int64]  # (questions,)
    questions: list[str]
    answers: list[str]


def generate(count: int, *, seed: int, questions: int = 3) -> ShapeQuestions:
    """``count`` images with ``questions`` questions each; equal arguments give equal images."""
    random = np.random.default_rng([seed, count])
    pixels = np.empty((count, SIDE, SIDE, 3), np.uint8)
    about: list[int] = []
    asked: list[tuple[str, str]] = []
    for i in range(count):
        shapes = _shapes(random)
        pixels[i] = _picture(shapes, random)
        found = [_question(shapes, random) for _ in range(questions)]
        asked += found
        about += [i] * len(found)
    texts, answers = zip(*asked, strict=True)
    return ShapeQuestions(pixels=pixels, image=np.array(about), questions=list(texts), answers=list(answers))


def _shapes(random: np.random.Generator) -> list[Shape]:
    cells = random.permutation(9)[: random.integers(2, 5)]
    kinds, colours = list(KINDS), list(COLOURS)
    return [
        Shape(
            kind=kinds[random.integers(len(kinds))],
            colour=colours[random.integers(len(colours))],
            row=int(cell) // 3,
            column=int(cell) % 3,
        )
        for cell in cells
    ]


def _picture(shapes: list[Shape], random: np.random.Generator) -> NDArray[np.uint8]:
    """The shapes on a noisy background, (Y, X, 3)."""
    ground = random.integers(200, 240)
    picture = ground + random.normal(0, 8, (SIDE, SIDE, 3))
    for shape in shapes:
        middle_y, middle_x = (
            CELL * place + CELL / 2 - 0.5 + random.integers(-1, 2) for place in (shape.row, shape.column)
        )
        size = random.uniform(2.8, 3.8)
        off_y, off_x = ROWS - middle_y, COLUMNS - middle_x
        if shape.kind == "circle":
            inside = off_y**2 + off_x**2 <= size**2
        elif shape.kind == "square":
            inside = np.maximum(abs(off_y), abs(off_x)) <= 0.85 * size
        else:
            inside = (off_y <= 0.8 * size) & (abs(off_x) <= 0.55 * (off_y + 1.1 * size))
        picture[inside] = np.array(COLOURS[shape.colour]) + random.normal(0, 12, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _question(shapes: list[Shape], random: np.random.Generator) -> tuple[str, str]:
    """A question with its answer, of a kind that suits this image."""
    sorts = list(_possible(shapes, random))
    return sorts[random.integers(len(sorts))]


def _possible(shapes: list[Shape], random: np.random.Generator) -> Iterator[tuple[str, str]]:
    """One question of each kind with a unique answer."""
    kind = KINDS[random.integers(len(KINDS))]
    colour = list(COLOURS)[random.integers(len(COLOURS))]
    if random.random() < 0.5:
        yield f"how many {kind}s", NUMBERS[sum(each.kind == kind for each in shapes)]
    else:
        yield f"how many {colour} shapes", NUMBERS[sum(each.colour == colour for each in shapes)]
    shown = shapes[random.integers(len(shapes))]
    asked = (shown.colour, shown.kind) if random.random() < 0.5 else (colour, kind)
    there = any((each.colour, each.kind) == asked for each in shapes)
    yield f"is there a {asked[0]} {asked[1]}", "yes" if there else "no"
    alone = [each for each in shapes if sum(other.kind == each.kind for other in shapes) == 1]
    if alone:
        one = alone[random.integers(len(alone))]
        yield f"what colour is the {one.kind}", one.colour
        yield f"where is the {one.kind}", PLACES[one.column]
    pairs = [(a, b) for a in alone for b in alone if a.column != b.column]
    if pairs:
        first, second = pairs[random.integers(len(pairs))]
        left = first.column < second.column
        yield f"is the {first.kind} left of the {second.kind}", "yes" if left else "no"
