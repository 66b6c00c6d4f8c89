"""Runtimes that can be measured: the protocol, the table of names, and one file each.

Importing this loads no runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chipwise.core.tables import Table

Tokens = npt.NDArray[np.int64]  # (batch, tokens)
Logits = npt.NDArray[np.float32]  # (batch, vocab)


class Session(Protocol):
    """One loaded model with its KV cache.

    ``prefill`` starts new sequences; ``decode`` goes on with one token each and may be called until the cache holds
    ``capacity`` positions. Both return the logits of the last position of each sequence; the array may be reused by
    the next call. Equal tokens give equal logits, however often the session was used before.
    """

    vocab_size: int
    facts: dict[str, Any]  # what the file says of itself; ``design`` and ``name`` if it knows them

    def prefill(self, tokens: Tokens) -> Logits:
        """Forgets what was cached and runs ``tokens`` (batch, prompt)."""
        ...

    def decode(self, tokens: Tokens) -> Logits:
        """Runs one more token of each sequence, ``tokens`` (batch, 1)."""
        ...


class Runtime(Protocol):
    """A way to run an exported model. Stateless; importing its module is what loads the runtime."""

    name: str

    def version(self) -> str:
        """The runtime's own version."""
        ...

    def open(self, path: Path, *, capacity: int, batch: int, threads: int, options: dict[str, Any]) -> Session:
        """Loads the model at ``path`` with room for ``capacity`` positions of ``batch`` sequences.

        Raises:
            MeasurementError: The file is not a model that this runtime can run.
        """
        ...


RUNTIMES = Table(
    "runtime",
    "chipwise.runtimes",
    {
        "onnxruntime": "chipwise.profile.backends.onnxruntime:OnnxRuntime",
        "fake": "chipwise.profile.backends.fake:FakeRuntime",
    },
)
