"""A user's data that is broken, hostile or senseless: one line that names the file, soon, and no traceback.

Every row is a file that was once accepted, hung, or ended in a traceback.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import wave
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chipwise.core.fields import build
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.training.data.images.sources import ImagesSpec, read_pixels
from chipwise.training.data.sound.waves import decoded, endless
from chipwise.training.tasks.multimodal.sources import QuestionsSpec, read_questions
from chipwise.training.tasks.ranking.sources import InteractionsSpec, read_interactions
from chipwise.training.tasks.series.data import read_series
from chipwise.training.tasks.speech.data import SpeechData
from chipwise.training.tasks.speech.sources import WordsSpec, parts_of


def bomb(side: int) -> bytes:
    """A black PNG of ``side`` by ``side`` bits, made without its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj()
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(min(side, 64))) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def npz(path: Path, **arrays: object) -> None:
    np.savez_compressed(path, **{name: np.asarray(value) for name, value in arrays.items()})


def pictures(count: int = 50, *shape: int) -> np.ndarray:
    return np.zeros((count, *(shape or (8, 8))), np.uint8)


def read_vision(folder: Path, source: str, name: str, labels: str = "") -> None:
    read_pixels(ImagesSpec(source=source, path=name, labels=labels), folder, size=8, channels=1)  # type: ignore[arg-type]


NUMPY: dict[str, tuple[dict[str, object], str]] = {
    "labels of two axes": ({"images": pictures(), "labels": np.zeros((50, 2), int)}, r"labels must .*\(50, 2\)"),
    "no images": ({"images": pictures(0), "labels": np.zeros(0, int)}, "contains no pixels"),
    "images without pixels": ({"images": pictures(50, 0, 0), "labels": np.arange(50) % 2}, "contains no pixels"),
    "seven channels": ({"images": pictures(50, 8, 8, 7), "labels": np.arange(50) % 2}, "images must have .* not 7"),
    "two labels of one name": (
        {"images": pictures(), "labels": np.arange(50) % 2, "classes": ["cat", "cat"]},
        "`classes` gives two labels the name",
    ),
    "names for other labels": (
        {"images": pictures(), "labels": np.arange(50) % 2, "classes": ["a", "b", "c"]},
        "`classes` must name each of the 2 different labels, but has 3 names",
    ),
    "labels that are fractions": ({"images": pictures(), "labels": np.arange(50) / 2}, "not float64"),
    "no labels": ({"images": pictures()}, "holds no array 'labels'"),
    "a bomb": ({"images": pictures(100, 1000, 1000), "labels": np.arange(100) % 2}, r"unpacks to .* times its size"),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMPY)
def test_arrays_of_images(case: str, tmp_path: Path) -> None:
    arrays, words = NUMPY[case]
    npz(tmp_path / "set.npz", **arrays)
    with pytest.raises(SpecError, match=rf"set\.npz: .*{words}"):
        read_vision(tmp_path, "numpy", "set.npz")


def idx(*shape: int) -> bytes:
    return b"\x00\x00\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(2**24), "not an IDX file"),
        (idx(60_000, 28, 28) + bytes(100), r"an incomplete IDX file of shape \(60000, 28, 28\)"),
        (idx(2**31, 2**31, 2**31), "unpacks to .* GiB"),
        (idx(3_600_000, 1_000, 1), "unpacks to 3.4 GiB; at most 2 GiB"),
        (idx(2**27), "unpacks to 128 MiB"),
        (idx(0, 8, 8), "contains no pixels"),
    ],
)
def test_packed_idx_files(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    (tmp_path / "y.gz").write_bytes(gzip.compress(idx(0)))
    with pytest.raises(SpecError, match=words):
        read_vision(tmp_path, "idx", "x.gz", "y.gz")


@pytest.mark.parametrize("case", ["bomb", "pipe", "broken", "directory"])
def test_images_in_folders_and_tables(case: str, tmp_path: Path) -> None:
    """In a folder of classes and in a table of questions alike."""
    pytest.importorskip("PIL", reason="decodes images: pip install 'chipwise[search]'")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    image = tmp_path / "a" / "x.png"
    if case == "pipe":
        os.mkfifo(image)
    elif case == "directory":
        image.mkdir()
    else:
        image.write_bytes(bomb(30_000) if case == "bomb" else b"\x89PNG\r\n\x1a\n" + bytes(40))
    words = {"bomb": "more than 67 million pixels", "pipe": "a pipe or device", "broken": "not an image"}.get(
        case, "folder"
    )
    with pytest.raises(SpecError, match=rf"x\.png: .*{words}"):
        read_vision(tmp_path, "folder", ".")
    (tmp_path / "q.jsonl").write_text('{"image": "a/x.png", "question": "what?", "answer": "no"}')
    with pytest.raises(SpecError, match=rf"x\.png: .*{words}"):
        read_questions(QuestionsSpec(source="files", path="q.jsonl"), tmp_path, size=8, channels=3)


def test_no_image_library_speaks_to_the_user(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """An image of 9,500 x 9,500 pixels is above Pillow's warning and below its error."""
    pytest.importorskip("PIL", reason="decodes images: pip install 'chipwise[search]'")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(bomb(9_500))
    with pytest.raises(SpecError, match="more than 67 million pixels"):
        read_vision(tmp_path, "folder", ".")
    assert not list(recwarn)


LINES = {
    "deep": ("[" * 100_000, r"q\.jsonl, row 1: not valid JSON: nested too deep"),
    "digits": ('{"image": ' + "9" * 5_000 + "}", r"row 1: .*a number of .*digits"),
    "half": ('{"image": "a.png"', r"row 1: not valid JSON"),
}


@pytest.mark.parametrize("case", LINES)
def test_lines_of_questions(case: str, tmp_path: Path) -> None:
    text, words = LINES[case]
    (tmp_path / "q.jsonl").write_text(text)
    with pytest.raises(SpecError, match=words):
        read_questions(QuestionsSpec(source="files", path="q.jsonl"), tmp_path, size=8, channels=3)


def table(path: Path, **columns: list[object]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)


def picture_rows(folder: Path, **columns: list[object]) -> Callable[[], object]:
    table(folder / "t.parquet", **columns)
    return lambda: read_vision(folder, "parquet", "t.parquet")


def test_parquet_files(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="reads Parquet: pip install 'chipwise[search]'")
    pytest.importorskip("PIL", reason="decodes images: pip install 'chipwise[search]'")
    for columns, words in (
        ({"image": [bomb(30_000)] * 2, "label": [0, 1]}, "row 0: has more than 67 million pixels"),
        ({"image": [b"x"] * 2, "label": [[0], [1]]}, "labels must be either all whole numbers or all names"),
        ({"image": [b"x"] * 2, "label": [None, 1]}, "labels must be either"),
        ({"image": ["x"], "label": [1]}, "row 0 contains no image"),
        ({"image": [b"x"], "name": [1]}, "has no column 'label'"),
    ):
        with pytest.raises(SpecError, match=rf"t\.parquet: .*{words}"):
            picture_rows(tmp_path, **columns)()  # type: ignore[arg-type]
    import pyarrow

    empty = {"image": pyarrow.array([], pyarrow.binary()), "label": pyarrow.array([], pyarrow.int64())}
    with pytest.raises(SpecError, match="holds no rows"):
        picture_rows(tmp_path, **empty)()
    (tmp_path / "q.parquet").write_bytes(np.random.default_rng(0).bytes(4_000))
    with pytest.raises(SpecError, match=r"q\.parquet: not a complete Parquet file"):
        read_questions(QuestionsSpec(source="files", path="q.parquet"), tmp_path, size=8, channels=3)


def test_numbers_are_tags_too(tmp_path: Path) -> None:
    """A column of whole numbers gives each item one tag."""
    pytest.importorskip("pyarrow", reason="reads Parquet: pip install 'chipwise[search]'")
    table(tmp_path / "t.parquet", u=[1, 1, 2, 2], i=[5, 6, 5, 6], t=[1.0, 2.0, 3.0, 4.0], g=[7, 8, 7, 8])
    data = {"source": "parquet", "path": "t.parquet", "user": "u", "item": "i", "time": "t", "tags": "g"}
    found = read_interactions(build(InteractionsSpec, data), tmp_path)
    assert found.tag_names == ("", "7", "8")


def sound(samples: int = 8_000, rate: int = 16_000, *, value: int = 1_000) -> bytearray:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.full(samples, value, "<i2").tobytes())
    content = bytearray(stream.getvalue())
    content[24:28] = struct.pack("<I", rate)
    return content


def changed(place: int, content: bytes) -> bytes:
    found = sound()
    found[place : place + len(content)] = content
    return bytes(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(sound(rate=0)), "x.wav: has 0 samples a second"),
        (bytes(sound(rate=1)), "x.wav: has 1 samples a second; it must have from 4,000 to 768,000"),
        (bytes(sound(rate=2**32 - 1)), "4,294,967,295 samples a second"),
        (changed(34, struct.pack("<H", 7)), "has 7 bits a sample"),
        (
            changed(40, struct.pack("<I", 2**30)),
            "is truncated: it has .* bytes of sound, but its header states 1,073,741,824",
        ),
        (b"", "x.wav: not a WAV file: it ends too early$"),
        (bytes(sound())[:30], "x.wav: not a WAV file: it ends too early$"),
        (b"RIFF" + bytes(60), "not a WAV file"),
    ],
)
def test_wav_files(content: bytes, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        decoded(content, where="x.wav")


@pytest.mark.parametrize("stated", [2**32 - 1, 2**31, 2**31 - 1, 2**31 - 2**12])
def test_a_stream_without_a_length_is_read_to_its_end(stated: int) -> None:
    """Programs that write to a pipe state the largest length that there is."""
    content = changed(40, struct.pack("<I", stated))
    assert len(decoded(content, where="x.wav")) == 8_000
    assert endless(content)
    assert not endless(sound())


def test_files_without_a_stated_length_are_counted_where_the_data_is_described(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="makes spectrograms: pip install 'chipwise[search]'")
    for number, word in enumerate(("yes", "no")):
        (tmp_path / word).mkdir()
        for i in range(8):
            content = changed(40, struct.pack("<I", 2**32 - 1)) if i < number else bytes(sound())
            (tmp_path / word / f"{i}.wav").write_bytes(content)
    spec = WordsSpec(source="folder", path=".", held_out=0.2)
    image = ImageSpace(size=50, channels=10, classes=2, axes=1, patch=(5,))
    data = SpeechData(spec, tmp_path, tmp_path / "kept", image)
    data.prepare()
    assert str(data.summary()["source"]).endswith("; 1 file without a stated length, read to the end")


def test_words_that_are_silent_altogether(tmp_path: Path) -> None:
    for word in ("yes", "no"):
        (tmp_path / word).mkdir()
        for i in range(8):
            (tmp_path / word / f"{i}.wav").write_bytes(sound(value=0))
    with pytest.raises(SpecError, match="all recordings of 'no' and 'yes' are silent"):
        parts_of(WordsSpec(source="folder", path="."), tmp_path, bands=10, length=8_000)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1e308, -1e308], r"series 1 contains numbers above 1e\+100"),
        ([3.0, 3.0], "series 1 is constant in its training part"),
        ([math.nan, 1.0], "finite values"),
    ],
)
def test_series(values: list[float], words: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("x\n" + "\n".join(map(repr, values * 200)))
    with pytest.raises(SpecError, match=words):
        read_series({"paths": ["s.csv"]}, tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_of_the_data_that_is_not_finite(value: float) -> None:
    held = {"task": "speech", "name": "x", "data": {"held_out": value}}
    with pytest.raises(SpecError, match=r"data\.held_out: must be a finite number"):
        run_spec(held, file="x.yaml")
