"""Time series as tokens.

The first 80 % of each series are the training part, the next 10 % the validation part, and the last 10 % the test part.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.digest import digest
from chipwise.core.files import build, read_text, storage, write_atomic, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.errors import DataError, SpecError, StudyError
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.array_file import write_arrays
from chipwise.training.data.tokens import TokenData, load_tokens
from chipwise.training.tasks.protocol import Exported
from chipwise.training.tasks.token_data import TokenTaskData

MOST_VALUE = 1e100  # largest value; its square is still finite
SHOWN, FEWEST = 3, 200  # series shown with forecasts; fewest values in a series


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSpec:
    """The ``data`` of a run file for series: numeric columns of CSV files, or synthetic ``waves``."""

    source: str = "files"
    paths: tuple[str, ...] = ()  # relative to the run file's folder
    licence: str = "not stated"

    def __post_init__(self) -> None:
        if self.source not in ("files", "waves") or (self.source == "files") != bool(self.paths):
            raise SpecError("list CSV files under `paths`, or write `source: waves`", field="source")


def read_series(data: Mapping[str, object], base: Path) -> tuple[SeriesSpec, list[Float64Array]]:
    """Reads numeric columns, or generates sums of three sines with noise; scales each series by its first 80 %."""
    spec, found = build(SeriesSpec, data, field="data"), list[Float64Array]()
    for path in (base / name for name in spec.paths):
        for column in zip(*csv.reader(io.StringIO(read_text(path))), strict=False):
            try:
                found.append(np.array([float(value) for value in column[1:]]))
            except ValueError:
                continue  # dates and names are skipped
    if spec.source == "waves":
        t, random = np.arange(4_000.0)[:, None], np.random.default_rng(0)
        found = [np.sin(t / random.uniform(1, 10, 3)).sum(1) + random.normal(0, 0.1, len(t)) for _ in range(8)]
    if not found or min(map(len, found)) < FEWEST or not all(np.isfinite(one).all() for one in found):
        raise DataError(f"needs at least one series, and each needs at least {FEWEST} finite values", field="data")
    learnt = [one[: len(one) * 8 // 10] for one in found]
    for number, (one, part) in enumerate(zip(found, learnt, strict=True), start=1):
        if np.abs(one).max() > MOST_VALUE:
            raise DataError(f"series {number} contains numbers above {MOST_VALUE:g}; scale it first", field="data")
        if part.min() == part.max():
            raise DataError(f"series {number} is constant in its training part; leave it out", field="data")
    return spec, [(one - part.mean()) / part.std() for one, part in zip(found, learnt, strict=True)]


class SeriesStore:
    """Stores scaled series as tokens: token 0 ends a series, other tokens are quantiles of the training part."""

    def __init__(self, spec: SeriesSpec, series: Sequence[Float64Array], folder: Path, sizes: Iterable[int]) -> None:
        self.spec, self.folder, self.sizes = spec, folder, list(sizes)
        ends = [(len(one) * 8 // 10, len(one) * 9 // 10) for one in series]
        cut = [np.split(one, end) for one, end in zip(series, ends, strict=True)]
        self.parts = {name: [parts[i] for parts in cut] for i, name in enumerate(("train", "validation", "test"))}

    def tokens_path(self, vocab_size: int) -> Path:
        """Path of the series as tokens of a vocabulary of this size."""
        return self.folder / f"series-{vocab_size}.npz"

    def tokens(self, vocab_size: int) -> TokenData:
        """Loads the series as tokens of this vocabulary size.

        Losses are bits per value, because each value counts as one byte of text here.
        """
        return load_tokens(self.tokens_path(vocab_size))

    def edges(self, vocab_size: int) -> Float64Array:
        """Boundaries of the quantiles; the values of a token lie between two neighbouring boundaries."""
        return np.quantile(np.concatenate(self.parts["train"]), np.linspace(0, 1, vocab_size))

    def prepare(self) -> None:
        """Writes the tokens for each vocabulary size."""
        stamp, mine = self.folder / "series.digest", digest([one.tolist() for one in self.parts["train"]])
        if stamp.exists() and stamp.read_text() != mine:
            raise StudyError(f"{self.folder}: contains different series; start again with --restart")
        for size in self.sizes:
            inner, held = self.edges(size)[1:-1], dict[str, AnyArray]()
            for name, parts in self.parts.items():
                rows = [np.r_[np.searchsorted(inner, part) + 1, 0] for part in parts]
                held[name] = np.concatenate([[0], *rows]).astype(np.uint16)
                held[f"{name}_bytes"] = np.array([len(part) for part in parts])
            write_arrays(self.tokens_path(size), {"sizes": np.array([size, held.pop("train_bytes").sum()]), **held})
            with storage(self.folder):
                write_atomic(stamp, mine)


class SeriesData(TokenTaskData[SeriesStore]):
    """Time series; see :class:`chipwise.training.tasks.protocol.TaskData`."""

    @classmethod
    def open(cls, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> Self:
        """Reads the series."""
        return cls(SeriesStore(*read_series(data, base), folder, space.vocab_size))

    def summary(self) -> Mapping[str, object]:
        """Name, source and licence of the series, and the number of series and of bytes in each part (8 per value)."""
        source = "synthetic sums of sines" if self.store.spec.source == "waves" else "the user's series"
        found: dict[str, object] = {"name": "series", "source": source, "licence": self.store.spec.licence}
        for name, part in (("train", "train"), ("val", "validation"), ("test", "test")):
            found[f"entries_{name}"] = len(self.store.parts[part])
            found[f"bytes_{name}"] = 8 * sum(map(len, self.store.parts[part]))
        return found

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """The ends of some test series, with one-step forecasts of winner and reference design."""
        ends = [part[-winner.design.arch.max_tokens :] for part in self.store.parts["test"][:SHOWN]]
        shown = {"winner": winner} | ({} if reference is None else {"baseline": reference})
        return {"forecasts": [{"true": e.tolist()} | {k: self._forecast(v, e) for k, v in shown.items()} for e in ends]}

    def _forecast(self, item: Exported, values: Float64Array) -> list[float]:
        """One-step forecasts of the exported graph: the midpoint of the most likely quantile."""
        from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

        edges = self.store.edges(item.design.arch.vocab_size)
        tokens = np.r_[0, np.searchsorted(edges[1:-1], values) + 1].astype(np.int64)
        session = OnnxRuntimeSession(item.folder / "model.onnx", capacity=item.design.arch.max_tokens)
        likeliest = [session.prefill(tokens[None, :1])[0, 1:].argmax()]
        likeliest += [session.decode(token[None, None])[0, 1:].argmax() for token in tokens[1:-1]]
        return [float(edges[i] + edges[i + 1]) / 2 for i in likeliest]

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes the Hugging Face folder, with the quantile boundaries of the tokens."""
        save_pretrained(item.design.arch, item.weights, None, folder, dict(files))
        write_json(folder / "quantiles.json", self.store.edges(item.design.arch.vocab_size).tolist())
