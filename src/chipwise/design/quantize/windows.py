"""Cuts text files into windows of calibration and held-out text for a GGUF file; each text file is a domain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from chipwise.core.files import read_text
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer, hugging_face_files
from chipwise.errors import DataError, Unsupported, counted
from chipwise.training.data.text import load_corpus
from chipwise.training.loop.origin import data_spec

WINDOW = 256  # tokens per window
CALIBRATION, HELD_OUT = 8, 16  # windows of all files together, if the text is long enough
LEAST = 2  # fewest windows of each of the two kinds
OTHER, OTHER_WINDOWS = "Python's manual in English", 4  # held out too, if the user gives only one text
OPENING, _MOST_OPENINGS = 24, 3  # tokens of an opening, whose continuation is shown; most files with an opening
_HELD = 3  # the last of this many parts of each file is held out


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows of calibration and held-out text as tokens, (windows, T)."""

    calibration: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    domains: tuple[str, ...]  # name of the file that each held-out window is from
    openings: tuple[str, ...]  # first words of held-out windows, one for each of a few files


def text_files(data: Sequence[str | Path]) -> list[Path]:
    """The text files that ``data`` names: single files, and all ``.txt`` files of folders.

    Raises:
        DataError: A path does not exist, or a folder has no ``.txt`` file.
    """
    found: list[Path] = []
    for each in map(Path, data):
        inside = sorted(each.rglob("*.txt")) if each.is_dir() else [each]
        if not inside:
            raise DataError("the folder has no .txt file", file=str(each), field="data")
        if not inside[0].is_file():
            raise DataError("there is no such file or folder", file=str(each), field="data")
        found += inside
    return found


@contextmanager
def texts_of(data: Sequence[str | Path] | Mapping[str, object]) -> Iterator[list[Path]]:
    """Lists the text files for :func:`windows_of`; if ``data`` names a text source, writes its entries to a file first.

    Raises:
        InputError: The data cannot be read.
    """
    names = [] if isinstance(data, Mapping) else [Path(item) for item in data]
    if names and all(name.is_dir() or name.suffix == ".txt" for name in names):
        yield text_files(names)
        return
    spec, base = data_spec(data)
    corpus = load_corpus(spec, base=base)
    with TemporaryDirectory() as room:
        file = Path(room) / f"{corpus.name}.txt"
        file.write_text("\n\n".join((*corpus.train, *corpus.validation)), encoding="utf-8")
        yield [file]


def windows_of(file: GgufFile, texts: Sequence[Path], *, max_tokens: int) -> Windows:
    """Takes windows spread evenly over each text: the first two thirds for calibration, the last third held out.

    Raises:
        DataError: A text is too short.
        Unsupported: The file has no tokenizer, or one that chipwise cannot run.
    """
    tokenizer = GgufTokenizer.of_fields(file.fields, file=str(file.path))
    if tokenizer is None:
        raise Unsupported(f"{file.path}: the file has no tokenizer, so text cannot be converted to tokens")
    files = hugging_face_files(tokenizer, max_tokens=max_tokens)
    reader = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    begin = [tokenizer.roles["bos"]] if tokenizer.adds_bos and "bos" in tokenizer.roles else []
    size = min(WINDOW, max_tokens)
    step = size - len(begin)

    def tokens(text: str) -> list[int]:
        return list(reader.encode(text, add_special_tokens=False).ids)

    def windows(ids: list[int]) -> list[list[int]]:
        return [begin + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]

    calibration, held, domains, openings = [], [], [], []
    for text in texts:
        ids = tokens(read_text(text))
        cut = windows(ids)
        if len(cut) < 2 * LEAST + 1:
            raise DataError(
                f"has {counted(len(ids), 'token')}; at least {(2 * LEAST + 1) * step:,} are needed ({size} per window)",
                file=str(text),
                field="data",
            )
        rest = max(LEAST, len(cut) // _HELD)
        calibration += _spread(cut[:-rest], max(LEAST, CALIBRATION // len(texts)))
        kept = _spread(cut[-rest:], max(LEAST, HELD_OUT // len(texts)))
        held += kept
        domains += [text.name] * len(kept)
        openings.append(reader.decode(kept[0][len(begin) : OPENING]))
    if len(texts) == 1 and (kept := _spread(windows(tokens(_manual())), OTHER_WINDOWS)):
        held += kept
        domains += [OTHER] * len(kept)
    return Windows(
        calibration=np.array(calibration, np.int64),
        held=np.array(held, np.int64),
        domains=tuple(domains),
        openings=tuple(openings[:_MOST_OPENINGS]),
    )


def _manual() -> str:
    """English text that is installed with Python; empty if this installation has none."""
    try:
        topics = import_module("pydoc_data.topics").topics
    except ImportError:
        return ""
    return "\n".join(str(topics[name]) for name in sorted(topics))


def _spread(items: list[list[int]], count: int) -> list[list[int]]:
    places = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))
    return [items[place] for place in places]
