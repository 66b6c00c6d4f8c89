"""Program that runs and times ``.pte`` files; runs in the environment ``executorch`` (``core/environments.py``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from chipwise.deploy.runtimes import Logits, Tokens
from chipwise.deploy.runtimes.timed_program import serve_models
from chipwise.errors import MeasurementError

# Loads what the package's portable_lib.py and custom_ops.py load, without their import of the converter, which takes
# some seconds and 300 MB.
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
from executorch.extension.pybindings import _C as runtime  # noqa: E402, N811

for _library in Path(runtime.__file__).parents[1].glob("llm/custom_ops/*custom_ops_aot_lib.*"):
    torch.ops.load_library(_library)  # attention with a cache
FACTS = "chipwise"  # the constant method that holds the file's metadata, JSON in bytes


class Model:
    """A loaded file, which contains its own cache."""

    def __init__(self, path: Path, threads: int, capacity: int) -> None:
        runtime._unsafe_reset_threadpool(threads)
        torch.set_num_threads(threads)
        try:
            self._loaded = runtime._load_for_executorch(str(path))
            self.facts: Mapping[str, object] = json.loads(bytes(self._loaded.run_method(FACTS, ())[0].tolist()))
        except (RuntimeError, ValueError) as error:
            raise MeasurementError(f"{path}: not an ExecuTorch file that chipwise wrote: {error}") from None

    def step(self, tokens: Tokens, start: int) -> Logits:
        """Returns logits (1, V) after ``tokens`` (1, T) from position ``start`` on; the next call overwrites them."""
        found: Logits = self._loaded.forward((torch.from_numpy(tokens), torch.tensor([start])), False)[0].numpy()
        return found


if __name__ == "__main__":
    serve_models("executorch", Model)
