"""Spectrograms of spoken clips in a run's folder: what keyword spotting and transcription say of them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.files import read_mapping, storage, write_json
from chipwise.errors import counted
from chipwise.training.data.arrays import LabelledArrays, save_arrays
from chipwise.training.data.dataset import Split
from chipwise.training.tasks.protocol import Losses


class Source(Protocol):
    """The fields of a run file's ``data`` that both tasks have."""

    @property
    def source(self) -> str:
        """``espeak`` or ``folder``."""
        ...

    @property
    def path(self) -> str:
        """The folder."""
        ...

    @property
    def snr_db(self) -> Sequence[float]:
        """Speech over noise, in turn."""
        ...

    @property
    def licence(self) -> str:
        """Of the recordings."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Spectrograms (n, bands, frames) in FP16, labels (n, …), ratios to noise (NaN without), and speakers."""

    inputs: NDArray[np.float16]
    labels: NDArray[np.int64]
    snr_db: NDArray[np.float64]
    speakers: NDArray[np.int64]  # numbers from 0, (n,)
    endless: int = 0  # recordings whose files state no length


def fields_of(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The parts of a data set, and mean and deviation of each band over what is learnt."""
    learnt = parts["train"].inputs.astype(np.float32)
    return {
        **{name: (part.inputs, part.labels) for name, part in parts.items()},
        "mean": learnt.mean((0, 2))[:, None],
        "std": np.maximum(learnt.std((0, 2)), 1e-2)[:, None],
    }


def keep(
    data: LabelledArrays,
    parts: Mapping[str, Part],
    spec: Source,
    path: Path,
    facts: Path,
    *,
    identity: str,
    note: str = "",
) -> None:
    """Writes the spectrograms, and then what they were made of: where that is, the file of spectrograms is whole."""
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(path, data)
    synthetic = spec.source == "espeak"
    source = "espeak-ng" if synthetic else f"recordings of the user ({spec.path})"
    if endless := sum(part.endless for part in parts.values()):
        note += f"; {counted(endless, 'file')} without a stated length, read to the end"
    noise = f", noise at {', '.join(f'{ratio:g}' for ratio in spec.snr_db)} dB" if spec.snr_db else ""
    said = {
        "source": source + noise + note,
        "licence": "made by this run" if synthetic else spec.licence,
        "synthetic": synthetic,
        "test_snr_db": parts["test"].snr_db.tolist() if spec.snr_db else [],
        "speakers": {name: part.speakers.tolist() for name, part in parts.items() if name != "train"},
        "identity": identity,
    }
    write_json(facts, said)


def summary_of(data: LabelledArrays, facts: Path, spec: Source) -> dict[str, Any]:
    """Clips and bytes of each part, source and licence."""
    said = read_mapping(facts)
    name = "synthetic speech" if said["synthetic"] else spec.source
    found = {"name": name, "source": said["source"], "licence": said["licence"]}
    for part, (inputs, labels) in (("train", data.train), ("val", data.validation), ("test", data.test)):
        found |= {f"entries_{part}": len(labels), f"bytes_{part}": int(inputs.nbytes)}
    return found


def by_speaker(values: Float64Array, sizes: NDArray[Any], facts: Path, split: Split) -> Losses:
    """Losses of each speaker: clips of one voice are alike, so speakers are what the uncertainty counts."""
    speakers = np.array(read_mapping(facts)["speakers"][split])
    return Losses(
        values=np.bincount(speakers, values).astype(np.float64), sizes=np.bincount(speakers, sizes).astype(np.float64)
    )
